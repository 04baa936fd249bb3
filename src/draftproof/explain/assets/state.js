// The two distributions everything on the page is about, and who is told when they change.
draftproof.state = (() => {
  const { renormalised, sum } = draftproof.numbers;
  const NAMES = ["A", "B", "C", "D", "E", "F", "G", "H"];
  const QUIET = 120; // ms without a move after which parts out of sight catch up
  const listeners = [];
  const late = new Set();
  let timer = null;
  const normalised = (values) => {
    const total = sum(values);
    return values.map((value) => value / total);
  };
  const state = { p: [], q: [], digits: window.innerWidth < 480 ? 3 : 4, names: NAMES };
  let held = null; // the bar being changed and the distribution it was in before

  // Shapes to start from, for any number of tokens.
  const presets = {
    typical: (n) => [
      normalised(Array.from({ length: n }, (_, i) => [5, 3, 2, 1, 1, 0.6, 0.4, 0.3][i])),
      normalised(Array.from({ length: n }, (_, i) => [3, 4.6, 1, 1.6, 0.5, 1, 0.3, 0.5][i])),
    ],
    sure: (n) => [
      normalised(Array.from({ length: n }, (_, i) => 1 / (i + 1))),
      normalised(Array.from({ length: n }, (_, i) => 1 / (i + 1) ** 3)),
    ],
    equal: (n) => {
      const p = normalised(Array.from({ length: n }, (_, i) => 1 / (i + 1)));
      return [p, p.slice()];
    },
    point: (n) => [
      normalised(Array.from({ length: n }, (_, i) => [4, 3, 2, 1, 1, 1, 0.5, 0.5][i])),
      Array.from({ length: n }, (_, i) => (i === 0 ? 1 : 0)),
    ],
    apart: (n) => {
      const half = Math.ceil(n / 2);
      return [
        Array.from({ length: n }, (_, i) => (i < half ? 1 / half : 0)),
        Array.from({ length: n }, (_, i) => (i < half ? 0 : 1 / (n - half))),
      ];
    },
  };

  // Tells everyone. While a bar moves, parts out of sight are told when it rests, so that dragging stays smooth.
  function announce(moving) {
    for (const entry of listeners) {
      if (moving && entry.section && !entry.visible) late.add(entry);
      else {
        late.delete(entry);
        entry.listener(state);
      }
    }
    clearTimeout(timer);
    if (late.size) timer = setTimeout(catchUp, QUIET);
  }

  function catchUp() {
    clearTimeout(timer);
    const waiting = [...late];
    late.clear();
    for (const entry of waiting) entry.listener(state);
  }

  function set(p, q) {
    state.p = p.slice();
    state.q = q.slice();
    held = null;
    announce();
  }

  // One bar of "p" or "q" to value v; its neighbours keep the proportions they had when this bar was taken.
  function move(which, i, v) {
    if (!held || held.which !== which || held.i !== i) held = { which, i, base: state[which].slice() };
    state[which] = renormalised(held.base, i, v);
    announce(true);
  }

  // The bar was let go: the next move starts from what is there now.
  function release() {
    held = null;
    catchUp();
  }

  function resize(n) {
    const grow = (values) =>
      normalised(Array.from({ length: n }, (_, i) => (i < values.length ? values[i] : 0.5 / values.length)));
    const cut = (values) => {
      const kept = values.slice(0, n);
      return sum(kept) > 0 ? normalised(kept) : kept.map(() => 1 / n);
    };
    const fit = n > state.p.length ? grow : cut;
    set(fit(state.p), fit(state.q));
  }

  function show(digits) {
    state.digits = digits;
    announce();
  }

  // listener: called after every change. section: id of the part it draws, where that part may be out of sight.
  function onChange(listener, section) {
    const entry = { listener, section, visible: false };
    listeners.push(entry);
    if (!section) return;
    const seen = new IntersectionObserver(([change]) => {
      entry.visible = change.isIntersecting;
      if (entry.visible && late.delete(entry)) listener(state);
    });
    seen.observe(document.getElementById(section));
  }
  const format = (value) => value.toFixed(state.digits);

  set(...presets.typical(4));
  return Object.assign(state, { presets, set, move, release, resize, show, onChange, format });
})();
