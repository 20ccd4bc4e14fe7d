// The details of one slice, node pool or workload: reason of its state, next step, history, and further sources.

import { WORKLOAD_STATES } from "./board.js";
import { icon, make, showTexts } from "./dom.js";
import { kindOf, nameOf } from "./query.js";
import { STATES, hostGrid, hostsInWords, stateChip } from "./states.js";
import { dayAndTime, duration, keepTimes, serverNow, setTime } from "./times.js";
import { costInWords, number } from "./totals.js";

const CONSOLE = "https://console.cloud.google.com/kubernetes";
const MOST_ENTRIES = 50;

/** Return the slice, node pool or workload with this id, and the objects that belong to it; null if none has the id. */
function find(store, id) {
  const slice = store.slices.get(id);
  if (slice) return { kind: "Slice", name: slice.group, slice, pool: store.pools.get(slice.pool), workload: slice.workload };
  const pool = store.pools.get(id);
  if (pool) return { kind: "Node pool", name: id, slice: store.slices.get(pool.slice), pool, workload: pool.workload };
  const track = store.tracks.get(id);
  if (track) return { kind: "Node pool", name: id, workload: track.segments.at(-1).workload };
  if (store.workloads.has(id)) return { kind: kindOf(id), name: nameOf(id), workload: id, item: store.workloads.get(id) };
  return null;
}

function moment(kind, text) {
  const node = make("time");
  setTime(node, kind, text);
  return node;
}

function chipOf(state) {
  const chip = stateChip();
  chip.update(state);
  return chip.node;
}

/** Create a list of names and values that are not empty. */
function facts(pairs) {
  const shown = pairs.filter(([, value]) => value);
  return make("dl", { className: "facts" }, ...shown.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function section(title, ...children) {
  return make("section", { className: "panel-section" }, make("h3", {}, title), ...children);
}

function table(caption, heads, rows) {
  const cells = (row) => row.map((each, index) => make("td", { attributes: { "data-head": heads[index] } }, each ?? ""));
  const head = make("tr", {}, ...heads.map((each) => make("th", { scope: "col" }, each)));
  const body = rows.map((row) => make("tr", {}, ...cells(row)));
  const node = make("table", { className: "stacked" }, make("caption", { className: "hidden" }, caption), make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { className: "table-box", tabIndex: 0, attributes: { role: "region", "aria-label": caption } }, node);
}

/** Create the paragraphs with the reason, the next step, and the notices. */
function why({ slice, pool, item }, isListed) {
  const shown = slice ?? pool ?? item;
  const parts = [];
  // If the table of choices is shown, the notice about the choices is left out.
  const notices = (shown?.notices ?? []).filter((each) => !isListed || each.reason !== "NodePoolCreationWaiting");
  // If a notice contains the reason or the next step, the paragraph for it is left out.
  if (shown?.reason && !notices.some((each) => each.message.includes(shown.reason))) parts.push(make("p", { className: "reason" }, shown.reason));
  if (slice?.next_step && !notices.some((each) => each.message.includes(slice.next_step))) parts.push(make("p", { className: "next" }, icon("next"), slice.next_step));
  if (slice?.next_try_at) parts.push(make("p", { className: "next" }, icon("next"), "Next try ", moment("in", slice.next_try_at)));
  if (slice?.queue) parts.push(make("p", { className: "next" }, icon("next"), `Place ${number(slice.queue.place)} of ${number(slice.queue.length)} in the queue for ${slice.queue.resource}`));
  const goes = slice ? null : pool?.delete_at;
  if (goes) parts.push(make("p", { className: "next" }, icon("next"), "To be deleted ", moment("in", goes), pool.delete_reason ? `: ${pool.delete_reason}` : ""));
  for (const each of notices) {
    parts.push(make("p", { className: each.warning ? "notice warning" : "notice" }, icon(each.warning ? "warning" : "info"), make("strong", {}, each.reason), ` ${each.message}`));
  }
  return parts;
}

/** Return the back-offs that concern a slice: those of the slice itself, and those of its machine type and shape. */
function backoffsOf(store, slice) {
  const all = store.summary?.capacity.backoffs ?? [];
  return all.filter((each) => each.capacity === slice.id || (each.machine_type === slice.machine_type && each.shape === `${slice.topology} on ${slice.hosts}`));
}

export function makeDetail(panel, links) {
  const box = make("div");
  panel.append(box);
  keepTimes(box);
  const link = (id, words) => make("a", { href: links({ view: "detail", id }) }, words ?? id);

  function about(store, { kind, slice, pool, workload, item }) {
    const shown = slice ?? pool;
    const hosts = pool?.hosts ?? (slice ? ".".repeat(slice.hosts) : "");
    const grid = hostGrid();
    grid.update(hosts);
    return facts([
      ["Workload", workload && !item && link(workload, `${kindOf(workload)} ${nameOf(workload)}`)],
      ["State of the workload", WORKLOAD_STATES[store.workloads.get(workload)?.state]],
      ["Created", item?.created_at && moment("ago", item.created_at)],
      ["Slice", pool?.slice && slice?.pool === pool.name && link(pool.slice, slice.group)],
      ["Node pool", pool && kind === "Slice" && link(pool.name)],
      ["Machines", shown && [shown.machine_type, shown.accelerator, shown.topology].filter(Boolean).join(", ")],
      ["Chips", (shown ?? item)?.chips && number((shown ?? item).chips)],
      ["Zone and capacity", pool && [pool.zone, pool.capacity, pool.reservation].filter(Boolean).join(" ")],
      ["Hosts", hosts && make("span", {}, hostsInWords(hosts), " ", grid.node)],
      ["Nodes that are not ready", pool?.unready_nodes.join(", ")],
      ["Pods", slice?.pods && `${number(slice.bound_pods)} of ${number(slice.pods)} bound to a node`],
      ["Leader pod", slice?.leader],
      ["Waiting for a node", slice?.unschedulable_since && moment("for", slice.unschedulable_since)],
      ["Cost an hour", pool && pool.cost_per_hour !== null && costInWords(pool.cost_per_hour, store)],
    ]);
  }

  /** Create the section about a queue, with the users of a limit. */
  function queueOf({ resource, users, other_users: others, ahead, idle_chips: idle, idle_until: until }) {
    const list = (items, ...more) => make("ul", {}, ...items.map((each) => make("li", {}, each)), ...more);
    return section(
      `In the queue for ${resource}`,
      facts([
        ["Used by", users.length && list(users, others ? make("li", {}, `${number(others)} more`) : "")],
        ["Ahead in the queue", ahead.length && list(ahead.map((id) => link(id)))],
        ["Becomes free", users.length && make("span", {}, "when one of these ends, or the administrator raises the limit", ...(until ? [`; ${number(idle)} idle chips become free `, moment("in", until)] : []))],
      ]),
    );
  }

  function listOf(slices) {
    const rows = slices.map((each) => [link(each.id, each.group), chipOf(each.state), moment("for", each.since), each.pool && link(each.pool), each.reason]);
    return section(`Slices (${number(slices.length)})`, table("Slices", ["Slice", "State", "For", "Node pool", "Reason"], rows));
  }

  function historyOf(track) {
    const now = serverNow();
    const rows = track.segments.map(({ state, slice, since, until }) => [
      slice && link(slice, slice.split("/").slice(3).join("/")),
      chipOf(state in STATES ? state : "none"),
      dayAndTime(Date.parse(since)),
      duration((until ? Date.parse(until) : now) - Date.parse(since)),
    ]);
    return section("History", table("History", ["Slice", "State", "Since", "For"], rows));
  }

  /** Create the section with commands for the terminal and links to the cloud console. */
  function further(store, found) {
    const { item, pool, workload, name } = found;
    const { project, location, cluster } = store.about;
    const lines = [];
    const [namespace, called] = nameOf(workload ?? "").split("/");
    const target = found.kind === "Slice" ? `slice/${name} -n ${namespace}` : item ? `${kindOf(workload).toLowerCase()}/${called} -n ${namespace}` : `pool/${name}`;
    lines.push(make("li", {}, make("code", {}, `tpu-provisioner explain ${target}`)));
    if (workload) {
      lines.push(make("li", {}, make("code", {}, `kubectl describe ${kindOf(workload).toLowerCase()} -n ${namespace} ${called}`)));
    }
    if (pool && project) {
      const address = `${CONSOLE}/nodepool/${location}/${cluster}/${encodeURIComponent(pool.name)}?project=${encodeURIComponent(project)}`;
      lines.push(make("li", {}, make("a", { href: address, rel: "noreferrer" }, "This node pool in the cloud console")));
    }
    return section("More", make("ul", { className: "more-list" }, ...lines));
  }

  function render(store, query) {
    const found = find(store, query.id);
    if (found === null) {
      showTexts(box, [[query.id, store.leading]], ([id, leads]) =>
        make("div", { className: "empty" }, make("h2", {}, `${id || "This object"} does not exist`), make("p", {}, leads ? "It was deleted, or never existed." : "This process stands by: it shows no slices.")),
      );
      return;
    }
    const { slice, pool, workload, item } = found;
    const related = new Set([pool?.name, slice?.pool, found.kind === "Node pool" ? found.name : ""].filter(Boolean));
    const entries = store.activity.filter((each) => related.has(each.pool) || (workload && each.workload === workload)).toReversed();
    const backoffs = ["waiting", "rejected"].includes(slice?.state) ? backoffsOf(store, slice) : [];
    const track = store.tracks.get(pool?.name ?? found.name);
    const slices = item ? [...store.slices.values()].filter((each) => each.workload === workload) : [];
    // The details are created again only if their data changed; times are updated separately.
    showTexts(box, [[found, entries, backoffs, track, slices, store.workloads.get(workload)]], () => {
      const state = (slice && found.kind === "Slice" ? slice : pool ?? slice)?.state;
      const since = (found.kind === "Slice" ? slice : pool)?.since;
      const title = make("h2", {}, make("span", { className: "kind" }, found.kind), ` ${found.name} `, state ? chipOf(state) : "");
      if (since) title.append(" ", moment("for", since));
      const parts = [make("p", {}, make("a", { href: links({ view: "board" }) }, "Board")), title, ...why(found, backoffs.length > 0), about(store, found)];
      if (backoffs.length) {
        const rows = backoffs.map((each) => [[each.zone, each.terms].filter(Boolean).join(" ") || each.capacity, each.kind.replaceAll("_", " "), moment("failing", each.since), moment("in", each.until), each.message]);
        parts.push(section("Choices that are not tried now", table("Choices that are not tried now", ["Choice", "Reason", "Since", "Next try", "Message"], rows)));
      }
      if (slice?.queue) parts.push(queueOf(slice.queue));
      if (item) parts.push(listOf(slices));
      if (track) parts.push(historyOf(track));
      const rows = entries.slice(0, MOST_ENTRIES).map((each) => [dayAndTime(Date.parse(each.at)), each.kind, each.pool && link(each.pool), each.message]);
      if (rows.length) parts.push(section("Activity", table("Activity", ["When", "Kind", "Node pool", "What happened"], rows)));
      parts.push(further(store, found));
      return make("div", { className: "detail" }, ...parts);
    });
  }

  return { render };
}
