// Seeded random numbers and the draws made with them.
draftproof.dice = (() => {
  // sfc32 (Chris Doty-Humphrey's "small fast counting" generator), 32-bit words; the first 12 are thrown away so
  // that near seeds part company.
  function dice(seed) {
    let a = 0, b = 0, c = seed >>> 0, counter = 1;
    function word() {
      const out = (a + b + counter++) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = (((c << 21) | (c >>> 11)) + out) | 0;
      return out >>> 0;
    }
    for (let i = 0; i < 12; i++) word();
    // A uniform in [0, 1) with 53 random bits.
    const uniform = () => ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992;
    // The index at which the running sum first exceeds u times the total; never one of weight zero.
    function draw(weights) {
      const goal = uniform() * draftproof.numbers.sum(weights);
      let running = 0, last = -1;
      for (let i = 0; i < weights.length; i++) {
        running += weights[i];
        if (weights[i] > 0) last = i;
        if (weights[i] > 0 && goal < running) return i;
      }
      return last;
    }
    return { word, uniform, draw };
  }

  // One position: x from q, kept if u < alpha(x), otherwise the residual's draw.
  function position(source, p, q) {
    const drafted = source.draw(q);
    const u = source.uniform();
    const alpha = draftproof.numbers.acceptProb(p, q)[drafted];
    const kept = u < alpha;
    return { drafted, u, alpha, kept, token: kept ? drafted : source.draw(draftproof.numbers.residual(p, q)) };
  }

  // What the toy chain knows after `prefix`: the bars turned by the sum of the tokens so far, so that the next
  // distribution depends on the prefix while the overlap, and with it the acceptance rate, stays the same.
  function turned(values, prefix) {
    const n = values.length;
    const by = prefix.reduce((total, token) => total + token + 1, 0) % n;
    return values.map((_, i) => values[(i - by + n) % n]);
  }

  // One round over g drafted positions: all drafts first, one target pass, then the walk.
  function round(source, p, q, g, prefix = []) {
    const drafts = [];
    for (let k = 0; k < g; k++) drafts.push(source.draw(turned(q, [...prefix, ...drafts])));
    const walk = [];
    for (let k = 0; k < g; k++) {
      const before = [...prefix, ...drafts.slice(0, k)];
      const [pk, qk] = [turned(p, before), turned(q, before)];
      const alpha = draftproof.numbers.acceptProb(pk, qk)[drafts[k]];
      const u = source.uniform();
      walk.push({ alpha, u, kept: u < alpha });
      if (u < alpha) continue;
      const last = source.draw(draftproof.numbers.residual(pk, qk));
      return { drafts, walk, accepted: k, last, origin: "residual" };
    }
    return { drafts, walk, accepted: g, last: source.draw(turned(p, [...prefix, ...drafts])), origin: g ? "bonus" : "plain" };
  }

  return { dice, position, round, turned };
})();
