// Token text made visible: what a model wrote is shown, never obeyed. Control characters, bidi marks and invisible
// characters become labelled marks; everything else is a text node.
draftproof.visible = (() => {
  const { html } = draftproof.dom;
  const C0 = ("NUL SOH STX ETX EOT ENQ ACK BEL BS ⇥ ↵ VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC " +
    "FS GS RS US").split(" ");
  const NAMES = {
    0x7f: "DEL", 0x00ad: "SHY", 0x061c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM",
    0x2028: "LS", 0x2029: "PS", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2060: "WJ",
    0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM", 0xfffd: "�",
  };
  // Everything without a face of its own: controls, formats, line and paragraph separators, lone surrogates, and
  // what fonts ignore. U+FFFD stands for bytes that make no character yet.
  const FACELESS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Default_Ignorable_Code_Point}\ufffd]/u;

  // Joiners and variation selectors are part of emoji and of several scripts; they are marked only where they have
  // nothing to join or to vary.
  function belongs(code, first, last) {
    if (code === 0x200c || code === 0x200d) return !first && !last;
    return ((code >= 0xfe00 && code <= 0xfe0f) || (code >= 0xe0100 && code <= 0xe01ef)) && !first;
  }

  const hex = (code) => "U+" + code.toString(16).toUpperCase().padStart(4, "0");
  const label = (code) => (code < 0x20 ? C0[code] : code >= 0xe0000 && code < 0xe0080 ? "TAG" : NAMES[code] || hex(code));

  // Nodes for a text; `breaks` keeps line feeds as breaks after their mark.
  function nodes(text, breaks) {
    if (!FACELESS.test(text)) return text ? [text] : []; // nearly all text: no need to look at each character
    const out = [];
    let run = "";
    const characters = Array.from(text);
    characters.forEach((character, i) => {
      const code = character.codePointAt(0);
      if (!FACELESS.test(character) || belongs(code, i === 0, i === characters.length - 1)) return void (run += character);
      if (run) out.push(run);
      run = "";
      out.push(html("span", { class: "mark-char", title: hex(code) }, label(code)));
      if (code === 0x0a && breaks) run = "\n";
    });
    if (run) out.push(run);
    return out;
  }

  // The same as one string, for labels that are read out.
  const plain = (text) => nodes(text, false).map((node) => (typeof node === "string" ? node : `[${node.textContent}]`)).join("");

  // A short text for a table or a list; quotes show where blanks are.
  const quoted = (text) => html("span", { class: "piece", dir: "ltr" }, html("bdi", {}, ...nodes(text, false)));

  return { nodes, plain, quoted };
})();
