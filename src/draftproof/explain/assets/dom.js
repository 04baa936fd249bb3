// Small helpers to build HTML and SVG. Text goes in as text nodes only: nothing here ever parses markup.
const draftproof = (window.draftproof = {});

draftproof.dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  // Sets attributes; null and false remove, functions become listeners ("onclick" listens to "click").
  function set(node, attributes) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (typeof value === "function") node.addEventListener(name.slice(2), value);
      else if (value === null || value === undefined || value === false) node.removeAttribute(name);
      else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
    }
    return node;
  }

  function fill(node, children) {
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  }

  const html = (tag, attributes, ...children) => fill(set(document.createElement(tag), attributes), children);
  const svg = (tag, attributes, ...children) => fill(set(document.createElementNS(SVG, tag), attributes), children);
  const byId = (id) => document.getElementById(id);

  // Writes text only where it changed, so that dragging touches as little as possible.
  function write(node, text) {
    if (node.textContent !== text) node.textContent = text;
    return node;
  }

  // Calls draw(width) now and whenever the container's width changes: pictures are drawn in real pixels.
  function onWidth(container, draw) {
    let width = 0;
    const measure = () => {
      const now = Math.floor(container.clientWidth);
      if (now > 0 && now !== width) draw((width = now));
    };
    new ResizeObserver(measure).observe(container);
    measure();
  }

  // Patterns, so that no colour carries meaning alone. Ids are unique within a page by `prefix`.
  function patterns(prefix) {
    const hatch = (id, angle, gap, stroke) =>
      svg(
        "pattern",
        { id: `${prefix}-${id}`, width: gap, height: gap, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})` },
        svg("rect", { width: gap, height: gap, class: `fill-${id}-soft` }),
        svg("rect", { width: stroke, height: gap, class: `fill-${id}` }),
      );
    const dots = svg(
      "pattern",
      { id: `${prefix}-surplus`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 6, height: 6, class: "fill-surplus-soft" }),
      svg("circle", { cx: 3, cy: 3, r: 1.3, class: "fill-surplus" }),
    );
    return svg("defs", {}, hatch("residual", 45, 7, 3), hatch("second", -45, 5, 2), dots);
  }

  return { set, html, svg, byId, write, onWidth, patterns };
})();
