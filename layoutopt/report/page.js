"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const MAX_LINES = 40; // as many lines are drawn whole; of more, those that are touched
const state = { step: 0, lane: null, timer: null };

function numbers(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  return new Int32Array(bytes.buffer);
}
for (const access of data.accesses) access.element = numbers(access.element);
for (const layout of data.layouts) {
  layout.table = numbers(layout.table);
  layout.wavefronts = layout.wavefronts.map(numbers);
}

// The lanes' phases and, wavefront by wavefront, the words that they touch.
function serve(address, access) {
  const rule = access.rule;
  const on = [...address.keys()].filter((lane) => address[lane] >= 0);
  const isOn = new Set(on);
  let phases = rule.phases;
  const holds = (bit) => on.every((l) => !isOn.has(l ^ bit) || address[l ^ bit] === address[l]);
  if (rule.merges_pairs && (holds(1) || holds(2))) {
    phases = phases.filter((_, k) => k % 2 === 0).map((p, k) => p.concat(phases[2 * k + 1]));
  }
  const count = Math.max(1, Math.floor(access.width_bytes / rule.bank_bytes));
  const words = [...Array(count).keys()];
  const served = [];
  for (const phase of phases) {
    const lanes = phase.filter((lane) => isOn.has(lane));
    if (!lanes.length) continue;
    for (const request of rule.split_words ? words.map((k) => [k]) : [words]) {
      const passes = [], place = new Map(), load = new Map();
      let serial = 0;
      for (const lane of lanes) for (const k of request) {
        const word = Math.floor(address[lane] / rule.bank_bytes) + k, bank = word % rule.banks;
        const row = rule.serialises_equal ? serial++ : Math.floor(word / rule.row_words);
        const key = bank + ":" + row;
        if (!place.has(key)) { place.set(key, load.get(bank) || 0); load.set(bank, place.get(key) + 1); }
        const pass = place.get(key);
        (passes[pass] ||= []).push({ lane, word, bank });
      }
      served.push({ lanes, passes, idle: rule.extra_wavefronts });
    }
  }
  return served;
}

function coordinates(element) {
  const out = [];
  element *= data.packed;
  for (let d = data.shape.length - 1; d >= 0; d--) {
    out.unshift(element % data.shape[d]);
    element = Math.floor(element / data.shape[d]);
  }
  return out;
}

function chosen() {
  const access = data.accesses[+$("access").value];
  const row = +$("iteration").value * data.warps + +$("warp").value;
  const elements = [...access.element.subarray(row * data.lanes, (row + 1) * data.lanes)];
  return { access, row, elements };
}

// Everything about one layout under the chosen instruction.
function view(layout, at) {
  const rule = at.access.rule;
  const address = at.elements.map((e) => (e < 0 ? -1 : layout.table[e]));
  const phases = serve(address, at.access);
  const cells = new Map(), steps = [];
  phases.forEach((phase, p) => {
    phase.passes.forEach((touches, w) => {
      const step = steps.length + 1;
      steps.push({ phase: p, wave: w, touches });
      for (const t of touches) {
        const cell = cells.get(t.word) || { lanes: new Set(), phase: p, wave: w, steps: new Set() };
        if (w > cell.wave) { cell.wave = w; cell.phase = p; }
        cell.lanes.add(t.lane);
        cell.steps.add(step);
        cells.set(t.word, cell);
      }
    });
    for (let k = 0; k < phase.idle; k++) steps.push({ phase: p, wave: -1, touches: [] });
  });
  return { layout, address, phases, cells, steps, banks: rule.banks, bankBytes: rule.bank_bytes,
    counted: layout.wavefronts[at.access.number][at.row] };
}

// The first element of every word: from the last byte down, so that the first one stays.
function owners(layout, bankBytes) {
  if (layout.owners?.bankBytes === bankBytes) return layout.owners;
  const order = [...layout.table.keys()].sort((a, b) => layout.table[b] - layout.table[a]);
  const words = new Map();
  for (const e of order) for (let b = layout.table[e]; b < layout.table[e] + data.element_bytes; b++) {
    words.set(Math.floor(b / bankBytes), e);
  }
  const starts = new Map();
  for (const e of order) starts.set(Math.floor(layout.table[e] / bankBytes), e);
  for (const [word, e] of starts) words.set(word, e);
  layout.owners = { bankBytes, words };
  return layout.owners;
}

function colourOf(cell) {
  if ($("colour").value === "phase") return data.phase_colours[cell.phase % data.phase_colours.length];
  return data.lane_colours[Math.min(...cell.lanes)];
}
const make = (tag, text, name) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
};

function draw() {
  const at = chosen();
  state.views = data.layouts.map((layout) => view(layout, at));
  const longest = Math.max(...state.views.map((v) => v.steps.length));
  $("step").max = longest;
  state.step = Math.min(state.step, longest);
  $("pictures").replaceChildren(...state.views.map(figure));
  drawLanes(at);
  mark();
}

function figure(v) {
  const fig = make("figure"), caption = make("figcaption");
  caption.append(make("b", v.layout.name), document.createTextNode(": "), make("code", v.layout.offset));
  const cost = make("div");
  cost.append(make("span", verdict(v), v.counted > v.phases.length ? "bad" : "good"));
  cost.append(make("span", ` ${v.layout.bytes.toLocaleString("en")} bytes.`));
  if (v.counted !== v.steps.length) cost.append(make("span", ` The engine counts ${v.counted}: a bug.`, "bad"));
  caption.append(cost);
  const scroll = make("div", undefined, "scroll"), table = make("table");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `Banks under the ${v.layout.name} layout`);
  const head = make("tr");
  head.append(make("th", "byte"));
  for (let b = 0; b < v.banks; b++) head.append(make("th", b));
  const top = make("thead"), body = make("tbody");
  top.append(head);
  const held = owners(v.layout, v.bankBytes).words;
  const lines = Math.ceil(v.layout.bytes / v.bankBytes / v.banks);
  const touched = new Set([...v.cells.keys()].map((w) => Math.floor(w / v.banks)));
  const whole = lines <= MAX_LINES || $("all-lines").checked;
  let skipped = 0;
  const flush = () => {
    if (!skipped) return;
    const row = make("tr"), note = make("td", `… ${skipped} lines not touched`, "skip");
    note.colSpan = v.banks;
    row.append(make("th"), note);
    body.append(row);
    skipped = 0;
  };
  for (let line = 0; line < lines; line++) {
    if (!whole && !touched.has(line)) { skipped++; continue; }
    flush();
    const row = make("tr");
    row.append(make("th", line * v.banks * v.bankBytes));
    for (let b = 0; b < v.banks; b++) {
      const word = line * v.banks + b, cell = v.cells.get(word);
      const td = make("td", held.has(word) ? coordinates(held.get(word)).join(",") : "");
      if (!held.has(word)) td.className = "pad";
      if (cell) {
        td.classList.add("hit");
        td.style.background = colourOf(cell);
        td.style.color = data.ink[colourOf(cell)];
        if (cell.wave > 0) { td.classList.add("waits"); td.append(make("sup", cell.wave + 1)); }
        cell.td = td;
        td.onmouseenter = td.onclick = () => choose(Math.min(...cell.lanes), [...cell.lanes]);
      }
      row.append(td);
    }
    body.append(row);
  }
  flush();
  table.append(top, body);
  scroll.append(table);
  fig.append(caption, scroll);
  return fig;
}

function verdict(v) {
  const plural = v.counted === 1 ? "wavefront" : "wavefronts";
  const worst = v.phases.reduce((a, b) => (b.passes.length > a.passes.length ? b : a));
  if (worst.passes.length === 1) return `${v.counted} ${plural}, no conflict.`;
  const bank = worst.passes.at(-1)[0].bank;
  const lanes = [...new Set(worst.passes.flat().filter((t) => t.bank === bank).map((t) => t.lane))];
  const some = lanes.slice(0, 6).join(", ") + (lanes.length > 6 ? ` and ${lanes.length - 6} more` : "");
  return `${v.counted} ${plural}: lanes ${some} meet in bank ${bank}, ${worst.passes.length}-way.`;
}

function mark() {
  const step = state.step;
  $("step").value = step;
  for (const v of state.views) for (const cell of v.cells.values()) {
    if (!cell.td) continue;
    const now = cell.steps.has(step), first = Math.min(...cell.steps), last = Math.max(...cell.steps);
    cell.td.classList.toggle("now", step > 0 && now);
    cell.td.classList.toggle("later", step > 0 && !now && step < first);
    cell.td.classList.toggle("done", step > 0 && !now && step > last);
    cell.td.classList.toggle("lane", state.lane !== null && cell.lanes.has(state.lane));
  }
  const most = Math.max(...state.views.map((v) => v.steps.length));
  if (!step) { $("where").textContent = `all ${most} at once`; return; }
  $("where").textContent = `wavefront ${step} of ${most}: ` + state.views.map((v) => {
    const now = v.steps[step - 1];
    return `${v.layout.name} ${now ? now.touches.length + " words" : "done"}`;
  }).join(", ");
}

function drawLanes(at) {
  const old = state.lane;
  $("lanes").replaceChildren(...at.elements.map((element, lane) => {
    const button = make("button", lane);
    button.type = "button";
    button.setAttribute("aria-label", `lane ${lane}`);
    button.setAttribute("aria-disabled", element < 0);
    button.tabIndex = lane === (old ?? 0) ? 0 : -1;
    button.onmouseenter = button.onfocus = () => choose(lane);
    return button;
  }));
  choose(old, undefined, false);
}

function choose(lane, together, redraw = true) {
  state.lane = lane;
  [...$("lanes").children].forEach((button, k) => {
    button.classList.toggle("on", k === lane);
    button.tabIndex = k === (lane ?? 0) ? 0 : -1;
  });
  if (lane === null) {
    $("detail").textContent = "Point at a cell or a lane to see what it touches.";
  } else {
    const at = chosen(), element = at.elements[lane];
    const lines = [element < 0 ? `lane ${lane} takes no part` :
      `lane ${lane} touches (${coordinates(element).join(", ")})` +
      (together && together.length > 1 ? `; so does ${together.filter((l) => l !== lane).map((l) => "lane " + l).join(", ")} (one word)` : "")];
    if (element >= 0) for (const v of state.views) {
      const mine = [...v.cells.entries()].filter(([, c]) => c.lanes.has(lane));
      const banks = [...new Set(mine.map(([word]) => word % v.banks))];
      const waves = [...new Set(mine.map(([, c]) => c.wave + 1))];
      const phase = v.phases.findIndex((p) => p.lanes.includes(lane)) + 1;
      lines.push(`${v.layout.name}: byte ${v.address[lane]}, bank ${span(banks)}, phase ${phase} of ${v.phases.length}, wavefront ${span(waves)} of it`);
    }
    $("detail").textContent = lines.join("\n");
  }
  if (redraw) mark();
}
const span = (list) => (list.length > 2 && list.at(-1) - list[0] === list.length - 1 ? `${list[0]}-${list.at(-1)}` : list.join(", "));

function move(to) {
  const most = +$("step").max;
  state.step = Math.max(0, Math.min(most, to));
  mark();
}
function play(on) {
  clearInterval(state.timer);
  state.timer = null;
  $("play").textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (state.step >= +$("step").max) state.step = 0;
  state.timer = setInterval(() => {
    move(state.step + 1);
    if (state.step >= +$("step").max) play(false);
  }, 600);
}

function options(select, texts, chosenOne) {
  select.replaceChildren(...texts.map((text, k) => {
    const option = make("option", text);
    option.value = k;
    return option;
  }));
  select.value = Math.min(chosenOne, texts.length - 1);
}
function pickAccess(keep) {
  const access = data.accesses[+$("access").value];
  options($("iteration"), access.iterations, keep ? data.start.iteration : 0);
  $("limits").textContent = access.left_out
    ? `${access.left_out.toLocaleString("en")} further iterations of this access are not in this page.` : "";
  $("cost").replaceChildren(...access.cost.map((line) => make("div", line)));
}

options($("access"), data.accesses.map((a) => `${a.name}: ${a.op}`), data.start.access);
options($("warp"), [...Array(data.warps).keys()].map(String), data.start.warp);
$("colour").value = data.start.colour;
pickAccess(true);
$("access").onchange = () => { play(false); pickAccess(false); state.step = 0; draw(); };
for (const id of ["warp", "iteration", "colour", "all-lines"]) $(id).onchange = () => { play(false); draw(); };
$("controls").onsubmit = (event) => event.preventDefault();
$("step").oninput = () => { play(false); move(+$("step").value); };
$("first").onclick = () => { play(false); move(0); };
$("back").onclick = () => { play(false); move(state.step - 1); };
$("next").onclick = () => { play(false); move(state.step + 1); };
$("play").onclick = () => play(!state.timer);
$("lanes").onkeydown = (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 8, ArrowUp: -8 }[event.key];
  if (!by) return;
  const count = $("lanes").children.length, now = [...$("lanes").children].indexOf(document.activeElement);
  $("lanes").children[(now + by + count) % count].focus();
  event.preventDefault();
  event.stopPropagation();
};
document.onkeydown = (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, input, .scroll")) return;
  const act = { ArrowRight: () => move(state.step + 1), ArrowLeft: () => move(state.step - 1),
    Home: () => move(0), End: () => move(+$("step").max), p: () => play(!state.timer) }[event.key];
  if (!act) return;
  if (event.key !== "p") play(false);
  act();
  event.preventDefault();
};
draw();
