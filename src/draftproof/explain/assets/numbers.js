// The rule at one position. The same functions, with the same names and edge cases, as draftproof/rule.py; the
// tests compare them on vectors that Python writes.
draftproof.numbers = (() => {
  const sum = (values) => values.reduce((total, value) => total + value, 0);

  // alpha(x) = min(1, p/q); 0 where p is 0 (derivation, section 3).
  const acceptProb = (p, q) => p.map((px, i) => (px < q[i] ? px / q[i] : px > 0 ? 1 : 0));

  // min(q, p): what the acceptance path gives each token (section 3).
  const accepted = (p, q) => p.map((px, i) => Math.min(px, q[i]));

  // max(0, p - q): what is still missing (section 4).
  const missing = (p, q) => p.map((px, i) => (px > q[i] ? px - q[i] : 0));

  // Z, the probability of a rejection (section 5).
  const rejectProb = (p, q) => sum(missing(p, q));

  // missing / Z; p itself where Z is 0 (section 4).
  function residual(p, q) {
    const z = rejectProb(p, q);
    return z === 0 ? p.slice() : missing(p, q).map((value) => value / z);
  }

  // pi(x), path by path, with the rejection as the algorithm meets it (sections 2.4 and 5).
  function outputDistribution(p, q) {
    const kept = acceptProb(p, q).map((alpha, i) => q[i] * alpha);
    const rejected = 1 - sum(kept);
    return residual(p, q).map((value, i) => kept[i] + rejected * value);
  }

  const totalVariation = (a, b) => sum(a.map((value, i) => Math.abs(value - b[i]))) / 2;

  // values with entry i set to v and the others scaled in the proportions of `base` so that the sum is one.
  function renormalised(base, i, v) {
    const value = Math.min(1, Math.max(0, v));
    const rest = sum(base) - base[i];
    const even = 1 / (base.length - 1);
    return base.map((b, j) => (j === i ? value : (1 - value) * (rest > 0 ? b / rest : even)));
  }

  // Tokens per round at acceptance rate a and draft length g: (1 - a^(g+1)) / (1 - a) (Leviathan, equation 1).
  const tokensPerRound = (a, g) => (a === 1 ? g + 1 : (1 - a ** (g + 1)) / (1 - a));

  // Speed-up when a draft token costs c target passes (Leviathan, theorem 3.8).
  const speedUp = (a, g, c) => tokensPerRound(a, g) / (1 + c * g);

  return {
    sum, acceptProb, accepted, missing, rejectProb, residual, outputDistribution, totalVariation, renormalised,
    tokensPerRound, speedUp,
  };
})();
