// The planted faults as laws: what each wrong rule emits first, exactly, for any p and q.
draftproof.laws = (() => {
  const { acceptProb, missing, residual, sum } = draftproof.numbers;
  const normalised = (values) => {
    const total = sum(values);
    return values.map((value) => value / total);
  };
  const largest = (values) => values.indexOf(Math.max(...values));
  const pointMass = (size, at) => Array.from({ length: size }, (_, i) => (i === at ? 1 : 0));

  // The emitted law of one draft: x from `draft`, kept with alpha[x], otherwise replaced from replace(x).
  function emitted(draft, alpha, replace) {
    const law = draft.map((d, x) => d * alpha[x]);
    draft.forEach((d, x) => {
      const rejected = d * (1 - alpha[x]);
      if (rejected > 0) replace(x).forEach((r, y) => (law[y] += rejected * r));
    });
    return law;
  }

  function topTwo(q) {
    const keep = q.map((_, i) => i).sort((a, b) => q[b] - q[a] || a - b).slice(0, 2);
    return normalised(q.map((value, i) => (keep.includes(i) ? value : 0)));
  }

  function softmax(values) {
    return normalised(values.map((value) => Math.exp(value)));
  }

  // The scheduler of the retrospective case. `survival` of the second position is known only after the drafted
  // token is: .9 after token 0, 0 after any other. Lengths 0, 1, 2 are compared by expected tokens per second.
  const SCHEDULER = { first: 0.8, second: (x) => (x === 0 ? 0.9 : 0), passes: [1.0, 0.5, 0.45] };

  function throughput(x) {
    const a1 = SCHEDULER.first;
    const a2 = a1 * SCHEDULER.second(x);
    return [1, 1 + a1, 1 + a1 + a2].map((tokens, length) => tokens * SCHEDULER.passes[length]);
  }

  const chosenLength = (x) => largest(throughput(x));

  const faults = {
    argmax_proposal_soft_q: (p, q) =>
      emitted(pointMass(q.length, largest(q)), acceptProb(p, q), () => residual(p, q)),
    truncated_draw_raw_q: (p, q) => emitted(topTwo(q), acceptProb(p, q), () => residual(p, q)),
    residual_minus_drafted_only: (p, q) =>
      emitted(q, acceptProb(p, q), (x) => normalised(p.map((value, y) => (y === x ? Math.max(0, value - q[x]) : value)))),
    replacement_from_p: (p, q) => emitted(q, acceptProb(p, q), () => p),
    softmaxed_residual: (p, q) => emitted(q, acceptProb(p, q), () => softmax(missing(p, q))),
    match_then_redraw: (p, q) => emitted(q, p, () => p),
    drop_seen_token: (p, q) => {
      const alpha = acceptProb(p, q).map((value, x) => (q[x] < 0.5 ? 0 : value));
      return emitted(q, alpha, (x) => (q[x] < 0.5 ? p : residual(p, q)));
    },
    siblings_stale_residual: (p, q) => {
      const again = emitted(q, acceptProb(p, q), () => residual(p, q));
      return emitted(q, acceptProb(p, q), () => again);
    },
    retrospective_schedule: (p, q) => {
      const alpha = acceptProb(p, q).map((value, x) => (chosenLength(x) > 0 ? value : 0));
      return emitted(q, alpha, (x) => (chosenLength(x) > 0 ? residual(p, q) : p));
    },
  };

  return { emitted, faults, throughput, chosenLength };
})();
