// The board: slices grouped by workload, then node pools that serve no slice.

import { Keyed, icon, make, setAttribute, setClass, setLink, setText, setTitled, showTexts } from "./dom.js";
import { NO_FILTERS, kindOf, matcher, nameOf, states } from "./query.js";
import { STATES, countHosts, hostGrid, hostLegend, stateChip } from "./states.js";
import { dropTimes, keepTimes, setTime } from "./times.js";

/** So many slices are shown; the rest is for filters to find. */
const MOST_ROWS = 1000;
const WORKLOAD_STATES = { suspended: "Suspended", completed: "Completed", failed: "Failed", deleting: "Being deleted" };

const number = (value) => value.toLocaleString("en");
export const chipsInWords = (chips) => `${number(chips)} ${chips === 1 ? "chip" : "chips"}`;

/** A cell with a label, which is read aloud and shown where there are no columns. */
function cell(name, label, ...children) {
  return make("div", { className: `cell ${name}` }, make("span", { className: "label" }, label), ...children);
}

function note(notice) {
  const node = make("li", { className: notice.warning ? "notice warning" : "notice" });
  node.append(icon(notice.warning ? "warning" : "info"), make("strong", {}, notice.reason), ` ${notice.message}`);
  return node;
}

/** What a slice's row and the row of a pool without a slice have in common. */
function makeRow() {
  const name = make("h4", { className: "row-name" });
  const pool = make("a", { className: "pool-name" });
  const purpose = make("span", { className: "muted" });
  const chip = stateChip();
  const since = make("time");
  const accelerator = make("span", { className: "strong" });
  const machine = make("span", { className: "muted" });
  const zone = make("span");
  const capacity = make("span", { className: "muted" });
  const grid = hostGrid();
  const ready = make("span", { className: "muted nowrap" });
  const pods = make("span");
  const reason = make("p", { className: "reason" });
  const next = make("p", { className: "next" });
  const nextTime = make("time");
  const nextLabel = make("span");
  next.append(icon("next"), nextLabel, nextTime);
  const unready = make("p", { className: "muted unready" });
  const notices = make("ul", { className: "notices" });
  const why = make("div", { className: "cell why" }, reason, next, unready, notices);
  const node = make(
    "li",
    { className: "row" },
    cell("c-name", "Slice ", name, pool, purpose),
    cell("c-state", "State ", chip.node, since),
    cell("c-machine", "Machines ", accelerator, machine),
    cell("c-zone", "Capacity ", zone, capacity),
    cell("c-hosts", "Hosts ", grid.node, ready),
    cell("c-pods", "Pods ", pods),
    why,
  );
  keepTimes(node);
  return {
    node,
    end: () => dropTimes(node),
    name,
    pool,
    pods,
    purpose,
    show({ item, pool: served, hosts, isQuiet, next: [label, moment] }) {
      chip.update(item.state);
      setTime(since, "for", item.since);
      setTitled(accelerator, [item.accelerator || "TPU", item.topology].filter(Boolean).join(" "));
      setTitled(machine, [item.machine_type, item.chips && chipsInWords(item.chips)].filter(Boolean).join(" · "));
      setTitled(zone, served?.zone ?? "");
      setTitled(capacity, served ? [served.capacity, served.reservation].filter(Boolean).join(" ") : "");
      grid.update(hosts);
      const counts = countHosts(hosts);
      setText(ready, hosts ? `${number(counts.R + counts.r)}/${number(hosts.length)} ready` : "");
      setText(reason, isQuiet ? "" : item.reason);
      reason.hidden = isQuiet || !item.reason;
      setText(nextLabel, `${label} `);
      setTime(nextTime, "in", moment);
      next.hidden = !moment;
      const names = served?.unready_nodes ?? [];
      const more = counts.j + counts.c - names.length;
      setText(unready, names.length ? `Not ready: ${names.join(", ")}${more > 0 ? ` and ${number(more)} more` : ""}` : "");
      unready.hidden = !names.length;
      showTexts(notices, item.notices ?? [], note);
      notices.hidden = !item.notices?.length;
      why.hidden = reason.hidden && next.hidden && unready.hidden && notices.hidden;
    },
  };
}

function sliceRow(links) {
  const row = makeRow();
  return {
    ...row,
    update([slice, pool]) {
      const hosts = pool?.hosts ?? ".".repeat(slice.hosts);
      const counts = countHosts(hosts);
      const isQuiet = slice.state === "running" && counts.R + counts.r === hosts.length;
      setTitled(row.name, slice.group);
      setTitled(row.pool, slice.pool);
      if (slice.pool) setLink(row.pool, links({ view: "timeline", q: slice.pool }));
      row.pool.hidden = !slice.pool;
      row.purpose.hidden = true;
      setText(row.pods, slice.pods ? `${number(slice.bound_pods)}/${number(slice.pods)} bound` : "none");
      row.show({ item: slice, pool, hosts, isQuiet, next: ["Next try", slice.next_try_at] });
    },
  };
}

function poolRow(links) {
  const row = makeRow();
  row.node.classList.add("of-pool");
  return {
    ...row,
    update(pool) {
      setTitled(row.name, pool.name);
      row.pool.hidden = true;
      setTitled(row.purpose, pool.workload ? `of ${nameOf(pool.workload)}` : "of no workload");
      setText(row.pods, "");
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
      setText(empty, slices.length ? "" : "It has no slices: it has no pods that ask for TPUs, and no node pools.");
      empty.hidden = slices.length > 0;
      rows.hidden = !slices.length;
      keyed.show(slices.map((each) => [each[0].id, each]), isChanged);
    },
  };
}

function columns() {
  const names = ["Slice and node pool", "State", "Machines", "Zone and capacity", "Hosts", "Pods"];
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
  const empty = make("div", { className: "empty" });
  panel.append(head, groups, more, othersNode, legend, empty);
  const keyed = new Keyed(groups, () => workloadGroup(links));
  const keyedPools = new Keyed(others, () => poolRow(links));
  let most = MOST_ROWS;
  let last = [];
  more.addEventListener("click", () => {
    most += MOST_ROWS;
    render(...last);
  });

  function render(store, query, changed) {
    last = [store, query, null];
    const matches = matcher(query);
    const byWorkload = new Map();
    let matched = 0;
    for (const slice of store.slices.values()) {
      const pool = store.pools.get(slice.pool);
      if (!matches(slice, pool)) continue;
      matched += 1;
      if (matched > most) continue;
      const group = byWorkload.get(slice.workload);
      if (group === undefined) byWorkload.set(slice.workload, [[slice, pool]]);
      else group.push([slice, pool]);
    }
    const isChanged = (id) => changed.slices.has(id) || changed.pools.has(store.slices.get(id)?.pool);
    const withSlices = new Set([...store.slices.values()].map((slice) => slice.workload));
    for (const workload of store.workloads.values()) {
      if (!withSlices.has(workload.id) && !states(query).size && matches(workload)) byWorkload.set(workload.id, []);
    }
    const items = [...byWorkload].map(([id, slices]) => {
      slices.sort(([a], [b]) => collator.compare(a.group, b.group));
      return [id, { id, workload: store.workloads.get(id), slices, isChanged: changed ? isChanged : undefined }];
    });
    items.sort(([a], [b]) => collator.compare(nameOf(a), nameOf(b)) || collator.compare(a, b));
    keyed.show(items);
    const pools = store.poolsWithoutSlice().filter((pool) => matches(pool));
    pools.sort((a, b) => collator.compare(a.name, b.name));
    keyedPools.show(
      pools.slice(0, most).map((pool) => [pool.name, pool]),
      changed ? (name) => changed.pools.has(name) : undefined,
    );
    more.hidden = matched <= most;
    setText(more, `Show more: ${number(matched - most)} slices are left. A filter finds them faster.`);
    const isEmpty = !items.length && !pools.length;
    head.hidden = legend.hidden = isEmpty;
    othersNode.hidden = !pools.length;
    empty.hidden = !isEmpty;
    if (isEmpty) explain(empty, store, links);
  }

  return { render };
}

const collator = new Intl.Collator("en", { numeric: true });

/** Say what to do where there is nothing to show. */
function explain(empty, store, links) {
  const texts = [];
  if (!store.leading) {
    texts.push(["This process stands by", "Another process leads and shows the slices. The Lease tells which: kubectl get lease -A"]);
  } else if (!store.summary) {
    texts.push(["Nothing has been decided yet", "The provisioner reads the cluster first. This page shows the slices as soon as it has decided about them."]);
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
