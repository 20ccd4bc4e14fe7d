// The view "Timeline": a row for each node pool, from the slice that first waited for it to its delete, by workload.

import { Keyed, make, setAttribute, setClass, setLink, setName, setText, showTexts } from "./dom.js";
import { matcher, nameOf, namespaceOf } from "./query.js";
import { STATES, stateChip } from "./states.js";
import { clockTime, dayAndTime, duration, everyAge, serverNow } from "./times.js";

const HOUR = 3600 * 1000;
const MINUTE = 60 * 1000;
export const ZOOMS = { "1h": [HOUR, 10 * MINUTE], "6h": [6 * HOUR, HOUR], "24h": [24 * HOUR, 4 * HOUR] };
const MOST_ROWS = 500;
const MOST_LINES = 1000;
/** Minimum width in pixels of a bar that shows the name of its state. */
const WORD_PIXELS = 64;

const collator = new Intl.Collator("en", { numeric: true });
const groupOf = (slice) => slice.split("/").slice(3).join("/");

/** Return a track with its times as numbers, and its owner: the slice that had the pool last, otherwise its last workload. */
function read(track) {
  const segments = track.segments.map((each) => ({
    ...each,
    from: Date.parse(each.since),
    to: each.until ? Date.parse(each.until) : null,
  }));
  const owned = segments.findLast((each) => each.slice) ?? segments.findLast((each) => each.workload);
  const last = segments.at(-1);
  return {
    pool: track.pool,
    segments,
    workload: owned?.workload ?? "",
    slice: owned?.slice ?? "",
    state: last.state,
    from: segments[0].from,
    to: last.to,
  };
}

const known = new WeakMap();

function readOnce(track) {
  let found = known.get(track);
  if (found === undefined) known.set(track, (found = read(track)));
  return found;
}

function inWords({ state, from, to }, now) {
  return `${STATES[state] ?? state} ${clockTime(from)} to ${to === null ? "now" : clockTime(to)} (${duration((to ?? now) - from)})`;
}

function trackRow() {
  const name = make("span", { className: "track-name" });
  const pool = make("a", { className: "pool-name" });
  const strip = make("div", { className: "strip", attributes: { role: "img" } });
  const node = make("li", { className: "track" }, make("div", { className: "track-label" }, name, pool), strip);
  return {
    node,
    update({ track, links, start, now, pixels }) {
      setName(name, groupOf(track.slice) || "no slice");
      setName(pool, track.pool);
      setLink(pool, links({ view: "detail", id: track.pool }));
      const shown = track.segments.filter((each) => (each.to ?? now) >= start);
      setAttribute(strip, "aria-label", shown.map((each) => inWords(each, now)).join("; "));
      while (strip.childElementCount > shown.length) strip.lastElementChild.remove();
      while (strip.childElementCount < shown.length) strip.append(make("span"));
      shown.forEach((each, index) => {
        const bar = strip.children[index];
        const from = Math.min(now, Math.max(start, each.from));
        const left = ((from - start) / (now - start)) * 100;
        const width = (Math.max(0, (each.to ?? now) - from) / (now - start)) * 100;
        const isOthers = each.slice !== "" && each.workload !== track.workload;
        setClass(bar, `bar s-${each.state in STATES ? each.state : "none"}${each.to === null ? " open" : ""}`);
        bar.style.left = `${left.toFixed(3)}%`;
        bar.style.width = `${width.toFixed(3)}%`;
        const word = isOthers ? nameOf(each.workload) : (STATES[each.state] ?? each.state);
        setText(bar, (width / 100) * pixels >= WORD_PIXELS ? word : "");
        const whose = isOthers ? ` for ${nameOf(each.workload)}` : "";
        const title = `${inWords(each, now)}${whose}`;
        if (bar.title !== title) bar.title = title;
      });
    },
  };
}

function trackGroup() {
  const name = make("h2");
  const rows = make("ul", { className: "tracks" });
  const node = make("section", { className: "group" }, make("div", { className: "group-head" }, name), rows);
  const keyed = new Keyed(rows, trackRow);
  return {
    node,
    update({ title, items, isChanged }) {
      setText(name, title);
      keyed.show(items, isChanged);
    },
  };
}

/** Column heads of the timeline as a table. */
const HEADS = ["Workload", "Slice", "Node pool", "State", "From", "Until", "Duration"];

function tableRow() {
  const chip = stateChip();
  const cells = HEADS.filter((each) => each !== "State").map((each) => make("td", { attributes: { "data-head": each } }));
  const node = make("tr", {}, ...cells.slice(0, 3), make("td", {}, chip.node), ...cells.slice(3));
  return {
    node,
    update({ track, segment, now }) {
      setText(cells[0], segment.workload ? nameOf(segment.workload) : "");
      setText(cells[1], groupOf(segment.slice));
      setText(cells[2], track.pool);
      chip.update(segment.state);
      setText(cells[3], dayAndTime(segment.from));
      setText(cells[4], segment.to === null ? "now" : dayAndTime(segment.to));
      setText(cells[5], duration((segment.to ?? now) - segment.from));
    },
  };
}

export function makeTimeline(panel, links) {
  const zooms = make("div", { className: "switch", attributes: { role: "group", "aria-label": "Time shown" } });
  const forms = make("div", { className: "switch", attributes: { role: "group", "aria-label": "Form" } });
  const note = make("p", { className: "muted" });
  const axis = make("div", { className: "axis", attributes: { "aria-hidden": "true" } });
  const groups = make("div", { className: "groups" });
  const chart = make("div", { className: "chart" }, axis, groups);
  const body = make("tbody");
  const headRow = make("tr", {}, ...HEADS.map((each) => make("th", { scope: "col" }, each)));
  const table = make("table", { className: "stacked" }, make("caption", { className: "hidden" }, "States of node pools over time"));
  table.append(make("thead", {}, headRow), body);
  const tableBox = make("div", { className: "table-box", tabIndex: 0, attributes: { role: "region", "aria-label": "Timeline as a table" } }, table);
  const empty = make("div", { className: "empty" });
  panel.append(make("div", { className: "tools" }, zooms, forms, legend(), note), chart, tableBox, empty);
  const keyed = new Keyed(groups, trackGroup);
  const keyedLines = new Keyed(body, tableRow);
  let last = null;
  let drawn = { start: 0, now: 0 };

  function render(store, query, changed) {
    last = [store, query];
    const zoom = query.zoom in ZOOMS ? query.zoom : "1h";
    const [span, step] = ZOOMS[zoom];
    // The time window moves only with each tick. Between ticks, only rows that changed are drawn.
    if (changed === null || drawn.now === 0) drawn = { start: serverNow() - span, now: serverNow() };
    const { start, now } = drawn;
    showSwitch(zooms, Object.keys(ZOOMS), zoom, (each) => [each.replace("h", " h"), links({ zoom: each })]);
    const form = query.as === "table" ? "table" : "chart";
    showSwitch(forms, ["chart", "table"], form, (each) => [each === "chart" ? "Chart" : "Table", links({ as: each })]);
    const matches = matcher(query);
    const found = [];
    for (const raw of store.tracks.values()) {
      const track = readOnce(raw);
      if (track.to !== null && track.to < start) continue;
      const item = {
        id: track.slice,
        name: track.pool,
        workload: track.workload,
        namespace: namespaceOf(track.workload) || (store.pools.get(track.pool)?.namespace ?? ""),
        state: track.state,
        accelerator: store.pools.get(track.pool)?.accelerator ?? store.slices.get(track.slice)?.accelerator ?? "",
      };
      if (matches(item)) found.push(track);
    }
    const byGroup = (a, b) =>
      collator.compare(nameOf(a.workload), nameOf(b.workload)) ||
      collator.compare(groupOf(a.slice), groupOf(b.slice)) ||
      a.from - b.from;
    found.sort(byGroup);
    chart.hidden = form !== "chart" || !found.length;
    tableBox.hidden = form !== "table" || !found.length;
    empty.hidden = found.length > 0;
    const isShort = found.length > MOST_ROWS;
    setText(note, isShort ? `The first ${MOST_ROWS} of ${found.length} node pools are shown; filters find the others.` : "");
    showTexts(empty, [store.tracks.size ? "No node pool of this time matches the filters" : "Nothing has happened yet"], (each) =>
      make("div", {}, make("h2", {}, each), make("p", {}, "The timeline begins when this process started; it shows each node pool that a slice waits for.")),
    );
    const shown = found.slice(0, MOST_ROWS);
    if (form === "chart") {
      drawAxis(axis, start, now, step);
      const pixels = axis.clientWidth;
      const groupsShown = new Map();
      for (const track of shown) {
        if (!groupsShown.has(track.workload)) groupsShown.set(track.workload, []);
        groupsShown.get(track.workload).push([track.pool, { track, links, start, now, pixels }]);
      }
      const isChanged = changed ? (pool) => changed.tracks.has(pool) : undefined;
      keyed.show([...groupsShown].map(([id, items]) => [id, { title: id ? nameOf(id) : "No workload", items, isChanged }]));
      keyedLines.show([]);
    } else {
      keyed.show([]);
      const lines = shown.flatMap((track) =>
        track.segments
          .filter((each) => (each.to ?? now) >= start)
          .map((segment) => [`${track.pool} ${segment.since} ${segment.state}`, { track, segment, now }]),
      );
      keyedLines.show(lines.slice(0, MOST_LINES));
      if (lines.length > MOST_LINES) setText(note, `The first ${MOST_LINES} of ${lines.length} states are shown; filters find the others.`);
    }
  }

  everyAge(() => {
    if (!panel.hidden && last !== null) render(...last, null);
  });
  return { render };
}

function legend() {
  const items = Object.keys(STATES)
    .filter((each) => each !== "none")
    .map((each) => make("span", { className: "legend-item" }, make("span", { className: `swatch bar s-${each}` }), STATES[each]));
  return make("p", { className: "legend" }, ...items, "Times in UTC");
}

/** Show choices as links, and mark the current choice. */
function showSwitch(parent, names, current, about) {
  const entries = names.map((each) => [each, ...about(each), each === current]);
  showTexts(parent, entries, ([, label, href, isCurrent]) => {
    const link = make("a", { href, textContent: label });
    if (isCurrent) link.setAttribute("aria-current", "true");
    return link;
  });
}

function drawAxis(axis, start, now, step) {
  const first = Math.ceil(start / step) * step;
  const ticks = [];
  for (let at = first; at < now - step / 20; at += step) ticks.push(at);
  while (axis.childElementCount > ticks.length) axis.lastElementChild.remove();
  while (axis.childElementCount < ticks.length) axis.append(make("span", { className: "tick" }, make("span")));
  ticks.forEach((at, index) => {
    const tick = axis.children[index];
    const percent = ((at - start) / (now - start)) * 100;
    tick.style.left = `${percent.toFixed(3)}%`;
    setText(tick.firstElementChild, percent < 3 || percent > 97 ? "" : clockTime(at).slice(0, 5));
  });
}
