// The view "Board": totals, then a line for each slice, and for each node pool without a slice. Problems come first.

import { Keyed, icon, make, setAttribute, setClass, setLink, setName, setProperty, setText, setTitled, showTexts } from "./dom.js";
import { NO_FILTERS, matcher, nameOf, states } from "./query.js";
import { STATES, countHosts, hostsInWords, stateChip } from "./states.js";
import { dropTimes, keepTimes, setTime } from "./times.js";
import { costInWords, number, priced, showCauses, showTotals, sum } from "./totals.js";

/** Maximum number of lines that are shown at first; a button shows more. */
const MOST_LINES = 1000;
/** Maximum number of lines that are created before the first paint, and in each later frame. */
const LINES_AT_ONCE = 60;
/** Number of matching slices above which a workload of several slices is shown as one line. */
const MOST_EXPANDED = 40;
/** Maximum number of lines with problems that show their whole reason. */
const MOST_FULL = 8;
/** Maximum number of characters of a whole reason next to which the column of the zone is shown. */
const MOST_BESIDE_ZONE = 40;
/** Maximum number of characters of a whole reason next to which the columns of hosts and cost are shown. */
const MOST_BESIDE_HOSTS = 110;
export const WORKLOAD_STATES = { suspended: "Suspended", completed: "Completed", failed: "Failed", deleting: "Being deleted" };
/** Columns in their order, each with its key (empty if lines cannot be sorted by it) and its title. */
const COLUMNS = [
  ["state", "State"],
  ["since", "For"],
  ["name", "Workload, slice or node pool"],
  ["", "Machines"],
  ["chips", "Chips"],
  ["", "Reason and next step"],
  ["", "Zone and capacity"],
  ["", "Hosts ready"],
  ["cost", "Cost an hour"],
];
const NUMBERS = new Set(["Hosts ready", "Chips", "Cost an hour"]);
const collator = new Intl.Collator("en", { numeric: true });
const RANKS = new Map(Object.keys(STATES).map((state, index) => [state, index]));
const rank = (state) => RANKS.get(state) ?? -1;

/** Comparisons of lines, by the column that they are sorted by. */
const byName = (a, b) => collator.compare(a.sortName, b.sortName);
const byAge = (a, b) => (a.since ?? "9").localeCompare(b.since ?? "9");
const ORDERS = {
  // Lines that wait, failed or were rejected have the oldest first.
  state: (a, b) => rank(a.state) - rank(b.state) || (rank(a.state) <= rank("waiting") ? byAge(a, b) : 0) || byName(a, b),
  since: (a, b) => byAge(a, b) || byName(a, b),
  name: byName,
  chips: (a, b) => b.chips - a.chips || byName(a, b),
  cost: (a, b) => (b.cost ?? 0) - (a.cost ?? 0) || byName(a, b),
};

/** Sort lines by a column. By state, slices that wait for one limit share their positions in the order of their places. */
function inOrder(lines, column) {
  const found = lines.toSorted(ORDERS[column]);
  if (column !== "state") return found;
  const queueOf = ({ state, queue }) => (queue ? `${state} ${queue.resource}` : "");
  const queues = Map.groupBy(found, queueOf);
  for (const among of queues.values()) among.sort((a, b) => (a.queue?.place ?? 0) - (b.queue?.place ?? 0)).reverse();
  return found.map((line) => queues.get(queueOf(line)).pop());
}

/** Return a reason without the planned node pool and the place, which are shown elsewhere. */
const brief = (text) =>
  text
    .replace(/^Node pool \S+ (?:is not created: |waits for (?=[^(:]+ \())(.)/, (_, first) => first.toUpperCase())
    .replace(/; place \d+ of \d+\./, ".");

const machinesOf = (item) => [item.accelerator || "unknown", item.topology].filter(Boolean).join(" ");

function lineOfSlice(slice, pool) {
  const hosts = pool?.hosts ?? ".".repeat(slice.hosts);
  const counts = countHosts(hosts);
  const isRejected = slice.state === "rejected";
  const isWhole = counts.R + counts.r === hosts.length && slice.bound_pods === slice.pods;
  return {
    key: `slice ${slice.id}`,
    id: slice.id,
    space: `${nameOf(slice.workload).split("/")[0]}/`,
    name: slice.group,
    sortName: `${nameOf(slice.workload)} ${slice.group}`,
    state: slice.state,
    since: slice.since,
    isLonger: slice.since_start,
    reason: slice.state === "running" && isWhole ? "" : slice.reason + (isRejected ? ` ${slice.next_step}` : ""),
    step: isRejected ? "" : slice.next_step,
    next: ["Next try", slice.next_try_at],
    queue: slice.queue,
    notices: slice.notices ?? [],
    machines: machinesOf(slice),
    zone: pool ? [pool.zone, pool.capacity].filter(Boolean).join(" ") : "",
    hosts,
    chips: slice.chips,
    cost: pool?.cost_per_hour ?? null,
  };
}

function lineOfPool(pool) {
  return {
    key: `pool ${pool.name}`,
    id: pool.name,
    space: "",
    name: pool.name,
    about: pool.workload ? `node pool of ${nameOf(pool.workload)}` : "node pool of no workload",
    sortName: pool.name,
    state: pool.state,
    since: pool.since,
    isLonger: pool.since_start,
    reason: pool.reason,
    next: ["To be deleted", pool.delete_at],
    notices: [],
    machines: machinesOf(pool),
    zone: [pool.zone, pool.capacity].filter(Boolean).join(" "),
    hosts: pool.hosts,
    chips: pool.chips,
    cost: pool.cost_per_hour,
  };
}

/** Return one line for all slices of a workload, with the reason of the first slice in the order of the board. */
function lineOfWorkload(id, workload, lines, column) {
  const sorted = inOrder(lines, "state");
  const [first] = sorted;
  const among = [...new Set(sorted.map((each) => each.state))];
  const only = (of) => (new Set(lines.map(of)).size === 1 ? of(first) : "");
  return {
    ...first,
    key: `workload ${id}`,
    id,
    space: `${nameOf(id).split("/")[0]}/`,
    name: nameOf(id).split("/")[1],
    sortName: nameOf(id),
    badge: WORKLOAD_STATES[workload?.state] ?? "",
    about: `${number(lines.length)} slices`,
    counts: among.map((state) => [state, lines.filter((each) => each.state === state).length]),
    notices: [...(workload?.notices ?? []), ...first.notices],
    machines: only((each) => each.machines),
    zone: only((each) => each.zone),
    hosts: lines.map((each) => each.hosts).join(""),
    chips: sum(lines, (each) => each.chips),
    cost: lines.some((each) => each.cost !== null) ? sum(lines, (each) => each.cost) : null,
    lines: inOrder(lines, column),
  };
}

/** Return the line of a workload that has notices, but no slices. */
function lineOfEmpty(workload) {
  return {
    key: `workload ${workload.id}`,
    id: workload.id,
    space: `${workload.namespace}/`,
    name: workload.name,
    sortName: nameOf(workload.id),
    badge: WORKLOAD_STATES[workload.state] ?? "",
    about: workload.kind,
    state: "none",
    since: workload.created_at,
    reason: workload.reason || "It has no slices.",
    next: ["", null],
    notices: workload.notices,
    machines: "",
    zone: "",
    hosts: "",
    chips: workload.chips,
    cost: null,
  };
}

function makeLine(links, toggle) {
  const chip = stateChip();
  const counts = make("span", { className: "counts" });
  const since = make("time");
  const opener = make("button", { type: "button", className: "opener" }, icon("open"));
  const space = make("span", { className: "muted" });
  const name = make("a", { className: "row-name" });
  const about = make("span", { className: "muted about" });
  const badge = make("span", { className: "badge" });
  const warning = make("span", { className: "warning-mark" }, icon("warning"));
  const reason = make("span", { className: "reason" });
  const place = make("span", { className: "place" });
  const nextLabel = make("span");
  const nextTime = make("time");
  const next = make("span", { className: "next" }, nextLabel, nextTime);
  const machines = make("td", { className: "c-machines" });
  const why = make("td", { className: "c-reason" }, make("div", {}, warning, reason, place, next));
  const zone = make("td", { className: "c-zone" });
  const hosts = make("td", { className: "c-hosts numeric" });
  const chips = make("td", { className: "c-chips numeric" });
  const cost = make("td", { className: "c-cost numeric" });
  const node = make(
    "tr",
    {},
    make("td", { className: "c-state" }, chip.node, counts),
    make("td", { className: "c-since" }, since),
    make("th", { className: "c-name", scope: "row" }, make("div", {}, opener, space, name, badge, about)),
    machines,
    chips,
    why,
    zone,
    hosts,
    cost,
  );
  let line = null;
  opener.addEventListener("click", () => toggle(line));
  keepTimes(node);
  return {
    node,
    end: () => dropTimes(node),
    update(shown) {
      line = shown;
      setClass(node, `row s-${line.state}${line.isSub ? " sub" : ""}${line.counts ? " workload" : ""}${line.isFull ? " full" : ""}`);
      setProperty(chip.node, "hidden", Boolean(line.counts));
      chip.update(line.state);
      showTexts(counts, line.counts ?? [], ([state, count]) => {
        const words = `${count} ${STATES[state].toLowerCase()}`;
        const hidden = make("span", { className: "hidden" }, ` ${STATES[state].toLowerCase()}`);
        return make("span", { className: `count s-${state}`, title: words }, icon(state), number(count), hidden);
      });
      setTime(since, line.isLonger ? "over" : "for", line.since);
      setProperty(opener, "hidden", !line.counts);
      setAttribute(opener, "aria-expanded", String(Boolean(line.isOpen)));
      setAttribute(opener, "aria-label", `Slices of ${line.sortName}`);
      setText(space, line.isSub ? "" : line.space);
      setProperty(space, "hidden", !space.textContent);
      setName(name, line.name);
      setLink(name, links({ view: "detail", id: line.id }));
      setText(badge, line.badge ?? "");
      setProperty(badge, "hidden", !line.badge);
      setText(about, line.about ?? "");
      const [notice] = line.notices;
      setProperty(warning, "hidden", !line.notices.some((each) => each.warning));
      const text = line.isOpen ? "" : line.reason || (notice ? `${notice.reason} ${notice.message}` : "");
      setText(reason, brief(text));
      setProperty(reason, "title", [text, line.step].filter(Boolean).join(" "));
      setText(place, line.queue && !line.isOpen ? `place ${number(line.queue.place)} of ${number(line.queue.length)}` : "");
      setProperty(place, "hidden", !place.textContent);
      setText(nextLabel, `${line.next[0]} `);
      setTime(nextTime, "in", line.next[1]);
      setProperty(next, "hidden", line.isOpen || !line.next[1]);
      setText(machines, line.machines.replace(/^tpu-/, ""));
      setProperty(machines, "title", line.machines);
      setTitled(zone, line.zone);
      const count = countHosts(line.hosts);
      setText(hosts, line.hosts ? `${number(count.R + count.r)}/${number(line.hosts.length)}` : "");
      setProperty(hosts, "title", line.hosts ? hostsInWords(line.hosts) : "");
      // The reason uses the space of empty columns; a long whole reason also uses the columns after it.
      const room = line.isFull ? text.length : 0;
      const isAlone = room > MOST_BESIDE_HOSTS || (!line.zone && !/[^.]/.test(line.hosts));
      const hasZone = Boolean(line.zone) && room <= MOST_BESIDE_ZONE;
      setProperty(why, "colSpan", isAlone ? line.columns : hasZone ? 1 : 2);
      setProperty(zone, "hidden", isAlone || !hasZone);
      for (const cell of [hosts, cost]) setProperty(cell, "hidden", isAlone);
      setText(chips, line.chips ? number(line.chips) : "");
      setText(cost, line.cost === null ? "" : costInWords(line.cost));
    },
  };
}

function quietWorkload() {
  const kind = make("span", { className: "muted" });
  const name = make("span", { className: "strong" });
  const state = make("span", { className: "badge" });
  const reason = make("span", { className: "muted" });
  return {
    node: make("li", {}, kind, " ", name, " ", state, " ", reason),
    update(workload) {
      setText(kind, workload.kind);
      setText(name, nameOf(workload.id));
      setText(state, WORKLOAD_STATES[workload.state] ?? "");
      state.hidden = !state.textContent;
      setText(reason, workload.reason);
    },
  };
}

/** Create the board in a panel; `links(changes)` returns the address of the page with changes of the query. */
export function makeBoard(panel, links, sorted) {
  const totals = make("dl", { className: "totals" });
  const causes = make("ul", { className: "causes" });
  const heads = make("tr");
  const body = make("tbody");
  const table = make("table", { className: "board" }, make("caption", { className: "hidden" }, "Slices and node pools"), make("thead", {}, heads), body);
  const more = make("button", { type: "button", className: "more", hidden: true });
  const quietHead = make("summary");
  const quietList = make("ul", { className: "quiet-list" });
  const quietText = make("p", { className: "muted" }, "They have no pods that request TPUs, or none that the provisioner serves.");
  const quietNode = make("details", { className: "group quiet" }, quietHead, quietText, quietList);
  const empty = make("div", { className: "empty" });
  panel.append(totals, causes, table, more, quietNode, empty);
  /** Whether a user opened (true) or closed (false) the line of a workload, by id of the workload. */
  const isOpen = new Map();
  const keyed = new Keyed(body, () => makeLine(links, toggle));
  const keyedQuiet = new Keyed(quietList, quietWorkload);
  let most = MOST_LINES;
  let room = 0;
  let last = [];
  /** All lines in their order, as last computed. Only the first `room` lines have been created. */
  let shown = [];
  let isGrowing = false;
  more.addEventListener("click", () => {
    most += MOST_LINES;
    room = most;
    render(...last);
  });

  function toggle(line) {
    isOpen.set(line.id, !line.isOpen);
    render(...last, null);
  }

  function showHeads(chosen, currency) {
    const named = (words) => (words === "Cost an hour" && currency ? `${currency} an hour` : words);
    showTexts(heads, COLUMNS.map(([column, words]) => [column, named(words), NUMBERS.has(words), sorted({ sort: column }), column && column === chosen]), ([column, words, isNumber, href, isChosen]) => {
      const node = make("th", { scope: "col", className: isNumber ? "numeric" : "" }, column ? make("a", { href, title: "Sort by this" }, words) : words);
      if (isChosen) node.setAttribute("aria-sort", isNumber ? "descending" : "ascending");
      return node;
    });
  }

  function render(store, query, changed) {
    last = [store, query];
    // The lines on the screen are created immediately, the other lines frame by frame.
    if (changed === null) room = Math.max(LINES_AT_ONCE, keyed.size);
    showTotals(totals, store);
    showCauses(causes, store);
    const matches = matcher(query);
    const sort = Object.hasOwn(ORDERS, query.sort) ? query.sort : "state";
    const byWorkload = Map.groupBy(
      [...store.slices.values()].filter((each) => matches(each, store.pools.get(each.pool))),
      (each) => each.workload,
    );
    const matched = sum([...byWorkload.values()], (each) => each.length);
    const entries = store.poolsWithoutSlice().filter((each) => matches(each)).map(lineOfPool);
    for (const [id, slices] of byWorkload) {
      const lines = slices.map((each) => lineOfSlice(each, store.pools.get(each.pool)));
      entries.push(lines.length === 1 ? lines[0] : lineOfWorkload(id, store.workloads.get(id), lines, sort));
    }
    const quiet = [];
    const withSlices = new Set([...store.slices.values()].map((each) => each.workload));
    for (const workload of store.workloads.values()) {
      if (withSlices.has(workload.id) || states(query).size || !matches(workload)) continue;
      if (workload.notices.length) entries.push(lineOfEmpty(workload));
      else quiet.push([workload.id, workload]);
    }
    shown = [];
    const columns = priced(store) ? 4 : 3;
    let full = 0;
    const push = (line, more) => {
      const isFull = !more.isOpen && full < MOST_FULL && (line.state === "none" || rank(line.state) <= rank("waiting"));
      full += isFull;
      shown.push([line.key, { ...line, ...more, columns, isFull }]);
    };
    for (const line of inOrder(entries, sort)) {
      const open = Boolean(line.lines) && (isOpen.get(line.id) ?? matched <= MOST_EXPANDED);
      push(line, { isOpen: open });
      if (open) for (const each of line.lines) push(each, { isSub: true });
    }
    showHeads(sort, store.summary?.capacity.currency);
    setClass(table, columns === 4 ? "board" : "board unpriced");
    keyed.show(shown.slice(0, Math.min(room, most)));
    grow();
    quiet.sort(([a], [b]) => collator.compare(nameOf(a), nameOf(b)));
    keyedQuiet.show(quiet.slice(0, most));
    setText(quietHead, `Workloads without slices (${number(quiet.length)})`);
    quietNode.hidden = !quiet.length;
    more.hidden = shown.length <= most;
    setText(more, `Show more: ${number(shown.length - most)} lines are left. A filter finds them faster.`);
    table.hidden = !shown.length;
    empty.hidden = shown.length > 0 || quiet.length > 0;
    if (!empty.hidden) explain(empty, store, links);
  }

  /** Create further lines in the next frame; existing lines are not changed. */
  function grow() {
    if (room >= Math.min(shown.length, most) || isGrowing) return;
    isGrowing = true;
    requestAnimationFrame(() => {
      isGrowing = false;
      if (panel.hidden) return;
      room += LINES_AT_ONCE;
      keyed.show(shown.slice(0, Math.min(room, most)), () => false);
      grow();
    });
  }

  return { render };
}

/** Show what to do if the board is empty. */
function explain(empty, store, links) {
  const texts = [];
  if (!store.leading) {
    const where = store.leader
      ? `Pod ${store.leader} leads, and its page shows the slices: forward the port of that pod.`
      : "Another process leads and shows the slices. The Lease names it: kubectl get lease -A";
    texts.push(["This process stands by", where]);
  } else if (!store.summary) {
    const what = store.problems.length
      ? "The message above has the cause. When it is solved, slices are shown and node pools are created."
      : "The provisioner reads the cluster first. This page shows the slices as soon as it has decided about them.";
    texts.push(["Nothing has been decided yet", what]);
  } else if (store.slices.size || store.workloads.size || store.pools.size) {
    texts.push(["Nothing matches these filters", "", links(NO_FILTERS)]);
  } else {
    texts.push([
      "No workload requests TPUs",
      "Apply a JobSet whose pods request google.com/tpu and select an accelerator and a topology, such as examples/jobset.yaml. Its slices appear here within seconds.",
    ]);
  }
  showTexts(empty, texts, ([title, text, link]) => {
    const node = make("div", {}, make("h2", {}, title), make("p", {}, text));
    if (link) node.append(make("a", { className: "button", href: link }, "Clear all filters"));
    return node;
  });
}
