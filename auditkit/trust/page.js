"use strict";
// The map of a run: pages of at most CELLS cells, each of 1, 10, 100, ... steps. All text goes in through textContent.
(() => {
  const CELLS = 1000, MISMATCH = 0, DISPUTED = 1, OPEN = 2, PARTIAL = 3, COVERED = 4; // as auditkit/trust/coverage.py
  const data = JSON.parse(document.getElementById("data").textContent);
  const size = data.size, names = data.statuses;
  const $ = (id) => document.getElementById(id);
  const number = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

  function make(tag, attributes, text) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // -- data ---------------------------------------------------------------------------------------------------------
  function bytes(text) {
    const raw = atob(text), out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out;
  }

  function* varints(text) {
    const raw = bytes(text);
    for (let i = 0; i < raw.length;) {
      let value = 0, scale = 1, byte;
      do { byte = raw[i++]; value += (byte & 127) * scale; scale *= 128; } while (byte & 128);
      yield value;
    }
  }

  // little-endian, whatever the machine
  function words(text, width) {
    const raw = bytes(text), out = new Uint32Array(raw.length / width);
    for (let i = 0; i < out.length; i++) {
      for (let b = width - 1; b >= 0; b--) out[i] = out[i] * 256 + raw[i * width + b];
    }
    return out;
  }

  const status = new Uint8Array(size);
  {
    let at = 0;
    for (const run of varints(data.runs)) {
      const length = Math.floor(run / 8);
      status.fill(run % 8, at, at + length);
      at += length;
    }
  }

  // Where the attestations of a step begin, for steps that have any; made when the first step is shown.
  let details = null;
  function attestations(step) {
    if (!details) {
      const first = new Map();
      let at = 0, begin = 0, gap = null;
      for (const value of varints(data.steps)) {
        if (gap === null) { gap = value; continue; }
        at += gap;
        first.set(at, [begin, value]);
        begin += value;
        gap = null;
      }
      details = {
        first, key: words(data.key, data.key_width), kind: words(data.kind, data.kind_width), time: words(data.time, 2),
      };
    }
    const [begin, count] = details.first.get(step) || [0, 0];
    return Array.from({ length: count }, (_, i) => {
      const row = begin + i, [verdict, family, automation, note] = data.kinds[details.kind[row]];
      const [keyid, name, reason] = data.keys[details.key[row]] || ["", "an auditor not listed here", ""];
      const when = new Date((data.time_base + details.time[row] * data.time_unit) * 1000);
      const outcome = data.outcomes[data.outcome_of[row]];
      return { keyid, name, verdict, family, automation, note: note || "", reason, when, outcome };
    });
  }

  // -- view ---------------------------------------------------------------------------------------------------------
  let top = 1;
  while (top * CELLS < size) top *= 10;
  let scale = top, page = 0, focus = 0, columns = 50;
  const first = () => page * scale * CELLS;
  const stop = () => Math.min(size, first() + scale * CELLS);
  const cellCount = () => Math.ceil((stop() - first()) / scale);

  function tally(from, to) {
    const found = [0, 0, 0, 0, 0];
    for (let step = from; step < to; step++) found[status[step]]++;
    return found;
  }

  const worst = (found) => found.findIndex((n) => n > 0);
  const span = (from, to) => (to - from === 1 ? `step ${number(from)}` : `steps ${number(from)} to ${number(to - 1)}`);

  function spoken(from, to, found) {
    if (to - from === 1) return `${span(from, to)}: ${names[worst(found)]}`;
    const parts = found.map((n, s) => [n, names[s]]).filter(([n]) => n > 0).map(([n, name]) => `${number(n)} ${name}`);
    return `${span(from, to)}: ${parts.join(", ")}`;
  }

  // Heights add up to the cell; a finding takes most of it, or one step in a thousand could not be seen.
  function paint(cell, found, total) {
    const bad = found[MISMATCH] ? MISMATCH : found[DISPUTED] ? DISPUTED : null, share = found.map((n) => n / total);
    cell.className = `cell s${worst(found)}`;
    if (share.includes(1)) return;
    if (bad !== null) {
      const rest = 1 - share[bad], shown = Math.max(share[bad], 0.7);
      share.forEach((_, s) => { share[s] = s === bad ? shown : share[s] * (1 - shown) / rest; });
    }
    cell.className = "cell";
    [MISMATCH, DISPUTED, OPEN, PARTIAL, COVERED].filter((s) => share[s] > 0).forEach((s) => {
      const part = make("i", { class: `s${s}` });
      part.style.height = `${(share[s] * 100).toFixed(2)}%`;
      cell.append(part);
    });
  }

  function draw(announce) {
    const map = $("map"), from = first(), count = cellCount();
    columns = Math.max(1, Math.min(window.innerWidth < 740 ? 20 : 50, count));
    map.style.setProperty("--columns", columns);
    map.style.setProperty("--cell", count < 50 ? "2.5rem" : "1fr"); // a short run is not stretched
    map.replaceChildren();
    map.setAttribute("aria-rowcount", Math.ceil(count / columns));
    map.setAttribute("aria-colcount", columns);
    for (let row = 0; row * columns < count; row++) {
      const line = make("div", { class: "row", role: "row" });
      line.append(make("span", { class: "head", role: "rowheader" }, number(from + row * columns * scale)));
      for (let c = row * columns; c < Math.min(count, (row + 1) * columns); c++) {
        const a = from + c * scale, b = Math.min(size, a + scale), cell = make("span", { role: "gridcell", tabindex: "-1" });
        const found = tally(a, b);
        paint(cell, found, b - a);
        cell.dataset.cell = c;
        cell.title = spoken(a, b, found);
        cell.setAttribute("aria-label", cell.title);
        line.append(cell);
      }
      map.append(line);
    }
    const each = scale === 1 ? "one step a cell" : `${number(scale)} steps a cell`;
    $("where").textContent = size ? `Showing ${span(from, stop())} of ${number(size)}, ${each}.` : "The run has no steps.";
    if (announce) $("live").textContent = $("where").textContent;
    $("b-in").disabled = scale === 1;
    $("b-out").disabled = $("b-all").disabled = scale === top;
    $("b-prev").disabled = page === 0;
    $("b-next").disabled = stop() === size;
    strip();
    if ($("view").open) table();
    focusCell(Math.floor((focus - from) / scale), false);
  }

  const cellAt = (c) => $("map").querySelector(`[data-cell="${c}"]`);

  function focusCell(c, grab) {
    const bounded = Math.max(0, Math.min(c, cellCount() - 1)), old = $("map").querySelector('[tabindex="0"]');
    if (old) old.tabIndex = -1;
    const cell = cellAt(bounded);
    if (!cell) return;
    cell.tabIndex = 0;
    focus = first() + bounded * scale;
    if (grab) cell.focus();
  }

  function show(step, newScale, grab) {
    focus = Math.max(0, Math.min(step, size - 1));
    scale = Math.max(1, Math.min(newScale, top));
    page = Math.floor(focus / (scale * CELLS));
    draw(true);
    focusCell(Math.floor((focus - first()) / scale), grab);
  }

  // Into a cell: to its first step of the worst status, which is what a reader looks for.
  function zoomIn(grab) {
    if (scale === 1) return;
    const a = focus, b = Math.min(size, a + scale), goal = worst(tally(a, b));
    let step = a;
    while (step < b && status[step] !== goal) step++;
    show(step, scale / 10, grab);
  }

  function enter() { if (scale > 1) zoomIn(true); else showStep(focus); }

  function turn(by, grab) {
    const next = page + by;
    if (next < 0 || next * scale * CELLS >= size) return;
    show(next * scale * CELLS + (by < 0 && grab ? (CELLS - 1) * scale : 0), scale, grab);
  }

  function findNext() {
    for (let i = 1; i <= size; i++) {
      const step = (focus + i) % size;
      if (status[step] === MISMATCH || status[step] === DISPUTED) { show(step, 1, true); return; }
    }
    $("live").textContent = $("where").textContent = "No step of this run is a mismatch or disputed.";
  }

  // -- the strip above the map: the whole run, with a frame around what the map shows ---------------------------------
  function strip() {
    const svg = $("strip"), wide = 1000, ns = "http://www.w3.org/2000/svg";
    svg.setAttribute("viewBox", `0 0 ${wide} 20`);
    const rect = (x, y, width, height, name) => {
      const made = document.createElementNS(ns, "rect");
      Object.entries({ x, y, width, height, class: name }).forEach(([k, v]) => made.setAttribute(k, v));
      return made;
    };
    if (!svg.dataset.drawn && size) {
      const parts = Math.min(size, 250), late = [];
      for (let p = 0; p < parts; p++) {
        const a = Math.floor(p * size / parts), b = Math.floor((p + 1) * size / parts), found = tally(a, b), x = p * wide / parts;
        const w = wide / parts + 0.3, good = 20 * found[COVERED] / (b - a), half = 20 * found[PARTIAL] / (b - a);
        if (good) svg.append(rect(x, 20 - good, w, good, "s4"));
        if (half) svg.append(rect(x, 20 - good - half, w, half, "s3"));
        const bad = found[MISMATCH] ? "s0" : found[DISPUTED] ? "s1" : "";
        if (bad) late.push(rect(x, 0, Math.max(w, 3), Math.max(9, 20 * (found[MISMATCH] + found[DISPUTED]) / (b - a)), bad));
      }
      svg.append(...late);
      svg.dataset.drawn = "yes";
    }
    svg.querySelector(".frame")?.remove();
    if (size) svg.append(rect(first() * wide / size, 0, Math.max((stop() - first()) * wide / size, 2), 20, "frame"));
  }

  // -- one step -----------------------------------------------------------------------------------------------------
  function moment(when) { return Number.isNaN(when.getTime()) ? "unknown" : when.toISOString().slice(0, data.time_unit < 60 ? 19 : 16).replace("T", " "); }

  function grid(heads, rows, caption) {
    const made = make("table"), head = make("tr"), body = make("tbody"), top_ = make("thead");
    if (caption) made.append(make("caption", {}, caption));
    heads.forEach((text) => head.append(make("th", { scope: "col" }, text)));
    rows.forEach((cells) => {
      const line = make("tr");
      cells.forEach((cell) => { const td = make("td"); td.append(cell); line.append(td); });
      body.append(line);
    });
    top_.append(head);
    made.append(top_, body);
    return made;
  }

  function showStep(step) {
    const found = attestations(step), box = $("step-text"), name = names[status[step]];
    $("h-step").replaceChildren(make("span", { class: `swatch s${status[step]}`, "aria-hidden": "true" }), `Step ${number(step)}: ${name}`);
    box.replaceChildren(make("p", {}, data.meanings[status[step]]));
    if (found.length) {
      const who = (a) => { const b = make("bdi", {}, a.name || a.keyid.slice(0, 8)); b.title = a.keyid; return b; };
      const results = [...new Set(found.map((a) => a.outcome).filter(Boolean))];
      const computed = (a) => (a.outcome ? `computed result ${results.indexOf(a.outcome) + 1}` : "");
      const note = (a) => [a.automation, a.note, a.note === "does not count" ? a.reason : "", computed(a)].filter(Boolean).join("; ");
      const rows = found.map((a) => [who(a), a.keyid.slice(0, 8), a.verdict, a.family, moment(a.when), note(a)]);
      const scroll = make("div", { class: "scroll" });
      const listed = grid(["auditor", "key", "says", "hardware", `finished (${data.time_word})`, "note"], rows);
      listed.className = "details";
      scroll.append(listed);
      box.append(make("p", {}, `${plural(found.length, "attestation")} listed.`), scroll);
      results.forEach((result, i) => box.append(make("p", { class: "result" }, `Result ${i + 1}: ${result}`)));
    } else {
      box.append(make("p", {}, data.cut ? "No attestation of this step is listed on this page." : "No attestation."));
    }
    $("step").hidden = false;
    $("step").focus();
    $("step").scrollIntoView({ block: "nearest" });
    $("live").textContent = `Step ${number(step)}: ${name}, ${plural(found.length, "attestation")}. Escape goes back to the map.`;
  }

  function closeStep() { $("step").hidden = true; focusCell(Math.floor((focus - first()) / scale), true); }

  function table() {
    const rows = [];
    for (let c = 0; c < cellCount(); c++) {
      const a = first() + c * scale, b = Math.min(size, a + scale);
      rows.push([b - a === 1 ? number(a) : `${number(a)} to ${number(b - 1)}`, ...tally(a, b).map(number)]);
    }
    $("view-table").replaceChildren(grid(["steps", ...names], rows, $("where").textContent));
  }

  // -- events -------------------------------------------------------------------------------------------------------
  const here = () => Math.floor((focus - first()) / scale);

  function move(by) {
    const next = here() + by;
    if (next < 0 || next >= cellCount()) {
      const step = first() + next * scale;
      if (step >= 0 && step < size) show(step, scale, true);
      return;
    }
    focusCell(next, true);
  }

  const KEYS = {
    ArrowRight: () => move(1),
    ArrowLeft: () => move(-1),
    ArrowDown: () => move(columns),
    ArrowUp: () => move(-columns),
    Home: () => focusCell(here() - here() % columns, true),
    End: () => focusCell(here() - here() % columns + columns - 1, true),
    PageDown: () => turn(1, true),
    PageUp: () => turn(-1, true),
    Enter: enter,
    " ": enter,
    "+": () => zoomIn(true),
    "=": () => zoomIn(true),
    "-": () => show(focus, scale * 10, true),
    Escape: () => show(focus, scale * 10, true),
    n: findNext,
  };

  $("map").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key) || !size) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  $("map").addEventListener("click", (event) => {
    const cell = event.target.closest("[data-cell]");
    if (!cell) return;
    focusCell(Number(cell.dataset.cell), true);
    enter();
  });
  $("step").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    closeStep();
  });
  $("b-in").addEventListener("click", () => zoomIn(false));
  $("b-out").addEventListener("click", () => show(focus, scale * 10, false));
  $("b-all").addEventListener("click", () => show(focus, top, false));
  $("b-prev").addEventListener("click", () => turn(-1, false));
  $("b-next").addEventListener("click", () => turn(1, false));
  $("b-find").addEventListener("click", findNext);
  function goTo() {
    const text = $("goto").value.replace(/[ ,]/g, "");
    if (!/^\d{1,15}$/.test(text) || Number(text) >= size) {
      $("live").textContent = $("where").textContent = `There is no such step: the run has steps 0 to ${number(size - 1)}.`;
      return;
    }
    show(Number(text), 1, true);
    showStep(Number(text));
  }
  $("b-goto").addEventListener("click", goTo);
  $("goto").addEventListener("keydown", (event) => { if (event.key === "Enter") goTo(); });
  $("view").addEventListener("toggle", () => { if ($("view").open) table(); });
  let wide = window.innerWidth < 740;
  window.addEventListener("resize", () => {
    if (wide !== window.innerWidth < 740) { wide = !wide; draw(false); }
  });

  $("tool").hidden = false;
  draw(false);
})();
