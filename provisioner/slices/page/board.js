// The board: slices grouped by workload, then node pools that serve no slice.

import { Keyed, icon, make, setAttribute, setClass, setLink, setName, setText, setTitled, showTexts } from "./dom.js";
import { NO_FILTERS, kindOf, matcher, nameOf, states } from "./query.js";
import { STATES, countHosts, hostGrid, hostLegend, stateChip } from "./states.js";
import { dropTimes, keepTimes, setTime } from "./times.js";

/** So many slices are shown; the rest is for filters to find. */
const MOST_ROWS = 1000;
/** So many rows are made before the first paint, and in each frame after it. */
const ROWS_AT_ONCE = 60;
const WORKLOAD_STATES = { suspended: "Suspended", completed: "Completed", failed: "Failed", deleting: "Being deleted" };

const number = (value) => value.toLocaleString("en");
const costInWords = (value) => `${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}/h`;
const chipsInWords = (chips) => `${number(chips)} ${chips === 1 ? "chip" : "chips"}`;

/** A cell with a label, which is read aloud and shown where there are no columns. */
function cell(name, label, ...children) {
  return make("div", { className: `cell ${name}` }, make("span", { className: "label" }, label), ...children);
}

function note(notice) {
  const node = make("li", { className: notice.warning ? "notice warning" : "notice" });
  node.append(icon(notice.warning ? "warning" : "info"), make("strong", {}, notice.reason), ` ${notice.message}`);
  return node;
}

/** Why it is so and what comes next, made where there is something to say. */
function makeWhy() {
  const reason = make("p", { className: "reason" });
  const next = make("p", { className: "next" });
  const nextTime = make("time");
  const nextLabel = make("span");
  next.append(icon("next"), nextLabel, nextTime);
  const unready = make("p", { className: "muted unready" });
  const notices = make("ul", { className: "notices" });
  return {
    node: make("div", { className: "cell why" }, reason, next, unready, notices),
    update({ text, label, moment, names, more, told }) {
      setText(reason, text);
      reason.hidden = !text;
      setText(nextLabel, `${label} `);
      setTime(nextTime, "in", moment);
      next.hidden = !moment;
      setText(unready, names.length ? `Not ready: ${names.join(", ")}${more > 0 ? ` and ${number(more)} more` : ""}` : "");
      unready.hidden = !names.length;
      showTexts(notices, told, note);
      notices.hidden = !told.length;
    },
  };
}

/** What a slice's row and the row of a pool without a slice have in common. */
function makeRow(...names) {
  const chip = stateChip();
  const since = make("time");
  const accelerator = make("span", { className: "strong" });
  const machine = make("span", { className: "muted" });
  const zone = make("span");
  const capacity = make("span", { className: "muted" });
  const grid = hostGrid();
  const ready = make("span", { className: "muted nowrap" });
  const pods = make("span");
  const cost = make("span", { className: "muted" });
  let why = null;
  const node = make(
    "li",
    {},
    cell("c-name", "Slice ", ...names),
    cell("c-state", "State ", chip.node, since),
    cell("c-machine", "Machines ", accelerator, machine),
    cell("c-zone", "Capacity ", zone, capacity),
    cell("c-hosts", "Hosts ", grid.node, ready),
    cell("c-pods", "Pods and cost ", pods, cost),
  );
  keepTimes(node);
  return {
    node,
    end: () => dropTimes(node),
    pods,
    show({ item, pool, hosts, isQuiet, next: [label, moment] }) {
      setClass(node, `row s-${item.state}`);
      chip.update(item.state);
      setTime(since, item.since_start ? "over" : "for", item.since);
      setTitled(accelerator, [item.accelerator || "unknown", item.topology].filter(Boolean).join(" "));
      setTitled(machine, [item.machine_type, item.chips && chipsInWords(item.chips)].filter(Boolean).join(" · "));
      setTitled(zone, pool?.zone ?? "");
      setTitled(capacity, pool ? [pool.capacity, pool.reservation].filter(Boolean).join(" ") : "");
      setText(cost, pool?.cost_per_hour ? costInWords(pool.cost_per_hour) : "");
      grid.update(hosts);
      const counts = countHosts(hosts);
      setText(ready, hosts ? `${number(counts.R + counts.r)}/${number(hosts.length)} ready` : "");
      const names = pool?.unready_nodes ?? [];
      const told = item.notices ?? [];
      // A notice may say the same, and more.
      const text = isQuiet || told.some(({ message }) => message.includes(item.reason)) ? "" : item.reason;
      const isTold = Boolean(text || moment || names.length || told.length);
      if (isTold && why === null) {
        why = makeWhy();
        node.append(why.node);
      }
      if (why === null) return;
      why.node.hidden = !isTold;
      why.update({ text, label, moment, names, more: counts.j + counts.c - names.length, told });
    },
  };
}

function sliceRow(links) {
  const name = make("h4", { className: "row-name" });
  const pool = make("a", { className: "pool-name" });
  const row = makeRow(name, pool);
  return {
    ...row,
    update([slice, served]) {
      const hosts = served?.hosts ?? ".".repeat(slice.hosts);
      const counts = countHosts(hosts);
      const isWhole = counts.R + counts.r === hosts.length && slice.bound_pods === slice.pods;
      const isQuiet = slice.state === "running" && isWhole;
      setName(name, slice.group);
      setName(pool, slice.pool);
      if (slice.pool) setLink(pool, links({ view: "timeline", q: slice.pool }));
      pool.hidden = !slice.pool;
      setText(row.pods, slice.pods ? `${number(slice.bound_pods)}/${number(slice.pods)} bound` : "none");
      row.show({ item: slice, pool: served, hosts, isQuiet, next: ["Next try", slice.next_try_at] });
    },
  };
}

function poolRow() {
  const name = make("h4", { className: "row-name" });
  const purpose = make("span", { className: "muted" });
  const row = makeRow(name, purpose);
  return {
    ...row,
    update(pool) {
      setName(name, pool.name);
      setTitled(purpose, pool.workload ? `of ${nameOf(pool.workload)}` : "of no workload");
      row.show({ item: pool, pool, hosts: pool.hosts, isQuiet: false, next: ["To be deleted", pool.delete_at] });
    },
  };
}

function workloadGroup(links) {
  const kind = make("span", { className: "kind" });
  const name = make("span", { className: "workload-name" });
  const namespace = make("span", { className: "muted" });
  const state = make("span", { className: "badge" });
  const facts = make("span", { className: "muted facts" });
  const counts = make("span", { className: "counts" });
  const created = make("time");
  const timeline = make("a", { textContent: "Timeline" });
  const activity = make("a", { textContent: "Activity" });
  const notices = make("ul", { className: "notices" });
  const empty = make("p", { className: "muted empty-group" });
  const rows = make("ul", { className: "rows" });
  const keyed = new Keyed(rows, () => sliceRow(links));
  const title = make("h3", {}, kind, namespace, name, state);
  const age = make("span", { className: "muted" }, "created ", created);
  const head = make("div", { className: "group-head" }, title, facts, age, counts);
  head.append(make("span", { className: "group-links" }, timeline, activity));
  const node = make("section", { className: "group" }, head, notices, empty, rows);
  keepTimes(head);
  return {
    node,
    end() {
      dropTimes(head);
      keyed.show([]);
    },
    update({ id, workload, slices, isChanged }) {
      setText(kind, kindOf(id));
      const [space, called] = nameOf(id).split("/");
      setText(namespace, `${space}/`);
      setText(name, called);
      setAttribute(node, "aria-label", id);
      setText(state, WORKLOAD_STATES[workload?.state] ?? "");
      setClass(state, `badge w-${workload?.state}`);
      state.hidden = !state.textContent;
      setText(facts, workload?.chips ? chipsInWords(workload.chips) : "");
      setTime(created, "ago", workload?.created_at);
      age.hidden = !workload?.created_at;
      const found = new Map();
      for (const [slice] of slices) found.set(slice.state, (found.get(slice.state) ?? 0) + 1);
      const among = Object.keys(STATES).filter((each) => found.has(each));
      showTexts(
        counts,
        among.map((each) => [each, found.get(each)]),
        ([each, count]) => make("span", { className: `count s-${each}` }, icon(each), `${count} ${STATES[each].toLowerCase()}`),
      );
      setLink(timeline, links({ view: "timeline", q: nameOf(id) }));
      setLink(activity, links({ view: "activity", q: nameOf(id) }));
      setAttribute(timeline, "aria-label", `Timeline of ${nameOf(id)}`);
      setAttribute(activity, "aria-label", `Activity of ${nameOf(id)}`);
      showTexts(notices, workload?.notices ?? [], note);
      notices.hidden = !workload?.notices?.length;
      setText(empty, slices.length ? "" : workload?.reason || "It has no slices.");
      empty.hidden = slices.length > 0;
      rows.hidden = !slices.length;
      keyed.show(slices.map((each) => [each[0].id, each]), isChanged);
    },
  };
}

/** A workload that neither has slices nor needs anybody to look: one line. */
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

function columns() {
  const names = ["Slice and node pool", "State", "Machines", "Zone and capacity", "Hosts", "Pods, cost"];
  return make(
    "div",
    { className: "row columns", attributes: { "aria-hidden": "true" } },
    ...names.map((name) => make("div", { className: "cell" }, name)),
  );
}

/** Make the view in a panel; `links(changes)` returns the address of what is shown with some of the query changed. */
export function makeBoard(panel, links) {
  const legend = hostLegend();
  const head = columns();
  const groups = make("div", { className: "groups" });
  const more = make("button", { type: "button", className: "more", hidden: true });
  const others = make("div", { className: "rows" });
  const othersHead = make("h3", {}, "Node pools without a slice");
  const othersNode = make("section", { className: "group" }, make("div", { className: "group-head" }, othersHead), others);
  const quietHead = make("summary");
  const quietList = make("ul", { className: "quiet-list" });
  const quietText = make("p", { className: "muted" }, "They have no pods that ask for TPUs, or none that the provisioner serves.");
  const quietNode = make("details", { className: "group quiet" }, quietHead, quietText, quietList);
  const empty = make("div", { className: "empty" });
  panel.append(head, groups, more, othersNode, quietNode, legend, empty);
  const keyed = new Keyed(groups, () => workloadGroup(links));
  const keyedPools = new Keyed(others, poolRow);
  const keyedQuiet = new Keyed(quietList, quietWorkload);
  let most = MOST_ROWS;
  let room = 0;
  let rows = 0;
  let last = [];
  let isGrowing = false;
  more.addEventListener("click", () => {
    most += MOST_ROWS;
    room = most;
    render(...last, NOTHING);
  });
  const ordered = new Order();

  function render(store, query, changed) {
    last = [store, query];
    // What is on the screen is there at once; the rest follows frame by frame.
    if (changed === null) room = Math.max(ROWS_AT_ONCE, rows);
    const matches = matcher(query);
    const byWorkload = new Map();
    let matched = 0;
    rows = 0;
    for (const slice of ordered.of(store.slices, changed)) {
      const pool = store.pools.get(slice.pool);
      if (!matches(slice, pool)) continue;
      matched += 1;
      if (matched > Math.min(room, most)) continue;
      rows += 1;
      const group = byWorkload.get(slice.workload);
      if (group === undefined) byWorkload.set(slice.workload, [[slice, pool]]);
      else group.push([slice, pool]);
    }
    const isChanged = changed
      ? (id) => changed.slices.has(id) || changed.pools.has(store.slices.get(id)?.pool)
      : undefined;
    const quiet = [];
    const withSlices = new Set([...store.slices.values()].map((slice) => slice.workload));
    for (const workload of store.workloads.values()) {
      if (withSlices.has(workload.id) || states(query).size || !matches(workload)) continue;
      if (workload.notices.length) byWorkload.set(workload.id, []);
      else quiet.push([workload.id, workload]);
    }
    const items = [...byWorkload].map(([id, slices]) => [
      id,
      { id, workload: store.workloads.get(id), slices, isChanged },
    ]);
    items.sort(([a], [b]) => collator.compare(nameOf(a), nameOf(b)) || collator.compare(a, b));
    keyed.show(items);
    const pools = store.poolsWithoutSlice().filter((pool) => matches(pool));
    pools.sort((a, b) => collator.compare(a.name, b.name));
    keyedPools.show(
      pools.slice(0, most).map((pool) => [pool.name, pool]),
      changed ? (name) => changed.pools.has(name) : undefined,
    );
    quiet.sort(([a], [b]) => collator.compare(nameOf(a), nameOf(b)));
    keyedQuiet.show(quiet.slice(0, most));
    setText(quietHead, `Workloads without slices (${number(quiet.length)})`);
    quietNode.hidden = !quiet.length;
    more.hidden = matched <= most;
    setText(more, `Show more: ${number(matched - most)} slices are left. A filter finds them faster.`);
    const isEmpty = !items.length && !pools.length && !quiet.length;
    head.hidden = legend.hidden = !items.length && !pools.length;
    othersNode.hidden = !pools.length;
    empty.hidden = !isEmpty;
    if (isEmpty) explain(empty, store, links);
    if (room < Math.min(matched, most) && !isGrowing) {
      isGrowing = true;
      requestAnimationFrame(() => {
        isGrowing = false;
        room += ROWS_AT_ONCE;
        if (!panel.hidden) render(...last, NOTHING);
      });
    }
  }

  return { render };
}

const collator = new Intl.Collator("en", { numeric: true });
const NOTHING = { slices: new Set(), pools: new Set() };

/** Slices by namespace, workload and group; sorted again only where some came or went. */
class Order {
  #ids = [];
  #known = new Set();

  of(slices, changed) {
    const isSame = changed !== null && [...changed.slices].every((id) => slices.has(id) && this.#known.has(id));
    if (!isSame) {
      this.#ids = [...slices.keys()].sort((a, b) => collator.compare(nameOf(a), nameOf(b)) || collator.compare(a, b));
      this.#known = new Set(this.#ids);
    }
    return this.#ids.map((id) => slices.get(id));
  }
}

/** Say what to do where there is nothing to show. */
function explain(empty, store, links) {
  const texts = [];
  if (!store.leading) {
    const where = store.leader
      ? `Pod ${store.leader} leads, and its page shows the slices: forward the port of that pod.`
      : "Another process leads and shows the slices. The Lease tells which: kubectl get lease -A";
    texts.push(["This process stands by", where]);
  } else if (!store.summary) {
    const what = store.problems.length
      ? "What prevents it stands above. Slices are shown, and node pools created, as soon as that is solved."
      : "The provisioner reads the cluster first. This page shows the slices as soon as it has decided about them.";
    texts.push(["Nothing has been decided yet", what]);
  } else if (store.slices.size || store.workloads.size || store.pools.size) {
    texts.push(["Nothing matches these filters", "", links(NO_FILTERS)]);
  } else {
    texts.push([
      "No workload asks for TPUs",
      "Apply a JobSet whose pods request google.com/tpu and select an accelerator and a topology, such as examples/jobset.yaml. Its slices appear here within seconds.",
    ]);
  }
  showTexts(empty, texts, ([title, text, link]) => {
    const node = make("div", {}, make("h2", {}, title), make("p", {}, text));
    if (link) node.append(make("a", { className: "button", href: link }, "Clear all filters"));
    return node;
  });
}
