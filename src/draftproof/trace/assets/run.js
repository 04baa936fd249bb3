// The chosen request's run: its tokens, rounds and counts, all derived from the trace.
draftproof.run = (() => {
  const { data } = draftproof.settings;
  const trace = data.trace;
  const listeners = [];
  const run = { trace, request: null, tokens: [], rounds: [], counts: {}, chosen: -1 };

  const median = (values) => {
    const sorted = values.slice().sort((a, b) => a - b);
    const half = sorted.length >> 1;
    return sorted.length === 0 ? 0 : sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };

  function load(id) {
    run.request = trace.requests.find((request) => request.request === id) || null;
    run.rounds = [];
    run.tokens = [];
    for (const round of trace.rounds) {
      const part = round.parts.find((candidate) => candidate.request === id);
      if (!part) continue;
      const place = run.rounds.length;
      run.rounds.push({ ...round, part, first: run.tokens.length });
      part.tokens.forEach((token, k) => run.tokens.push({ ...token, place, k, index: run.tokens.length }));
    }
    run.counts = count();
    run.plain = predict();
    const at = trace.requests.indexOf(run.request);
    run.result = trace.results[at] || null;
    run.chosen = run.tokens.length ? 0 : -1;
  }

  // As `Result.speculation` counts: drafted are the verified ones, the bonus token is never accepted.
  function count() {
    const counts = { rounds: run.rounds.length, proposed: 0, drafted: 0, accepted: 0, emitted: run.tokens.length, surprises: 0,
      drafted_at: [], accepted_at: [], target: 0, draft: 0, other: 0 };
    for (const { part, target_seconds, draft_seconds, other_seconds } of run.rounds) {
      counts.proposed += part.drafted.length;
      counts.drafted += part.admitted;
      counts.accepted += part.accepted;
      counts.surprises += part.surprises;
      counts.target += target_seconds;
      counts.draft += draft_seconds;
      counts.other += other_seconds;
      for (let k = 0; k < part.admitted; k++) {
        counts.drafted_at[k] = (counts.drafted_at[k] || 0) + 1;
        counts.accepted_at[k] = (counts.accepted_at[k] || 0) + (k < part.accepted ? 1 : 0);
      }
    }
    counts.total = counts.target + counts.draft + counts.other;
    return counts;
  }

  // Plain decoding makes one token per target pass. Its pass is taken at the median of this run's passes without a
  // draft, where there are at least three, or of all passes; the first, with the prompt in it, counts apart.
  function predict() {
    const later = run.rounds.slice(1);
    const undrafted = later.filter((round) => round.part.admitted === 0);
    const basis = undrafted.length >= 3 ? undrafted : later;
    const first = run.rounds.length ? run.rounds[0].target_seconds : 0;
    return { pass: median(basis.map((round) => round.target_seconds)), first, undrafted: undrafted.length >= 3 };
  }

  const plainSeconds = (tokens) => (tokens > 0 ? run.plain.first + (tokens - 1) * run.plain.pass : 0);

  function choose(index) {
    run.chosen = index;
    for (const listener of listeners) listener("chosen");
  }

  function select(id) {
    load(id);
    for (const listener of listeners) listener("request");
  }

  const onChange = (listener) => listeners.push(listener);

  load(trace.requests.length ? trace.requests[0].request : null);
  return Object.assign(run, { choose, select, onChange, plainSeconds });
})();
