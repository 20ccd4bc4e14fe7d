// The view "Capacity": chips by state and limit, back-off, and operations.

import { Keyed, icon, make, setAttribute, setText, showTexts } from "./dom.js";
import { STATES, stateChip } from "./states.js";
import { namespaceOf } from "./query.js";
import { dropTimes, keepTimes, setTime } from "./times.js";
import { costInWords, number } from "./totals.js";

function percent(share) {
  if (share > 0 && share < 0.01) return "< 1 %";
  return `${share > 0.99 && share < 1 ? 99 : Math.round(share * 100)} %`;
}

/** Texts for the scopes of limits that are not names. */
const SCOPES = { all: "all node pools", "*": "every other (the largest is shown)" };

const ABOVE = "Over the limit: it was lowered, or pods took idle node pools.";

/** Uses of chips, in the order of the table: title, states, and explanation. */
const USES = [
  ["Rejected", ["rejected"], "get no node pool unless their workload or a setting is changed"],
  ["Requested", ["waiting"], "wait for a node pool"],
  ["Starting", ["creating", "joining", "ready"], "of node pools that no pod runs on yet"],
  ["Running", ["running", "draining"], "of node pools with pods"],
  ["Split", ["split"], "of node pools that no slice has to itself"],
  ["Idle", ["idle"], "of node pools that nothing needs"],
  ["Being deleted", ["deleting"], "of node pools that are being deleted"],
  ["Failed", ["failed"], "of node pools that failed"],
];
/** Uses that are shown only if they have chips. */
const RARE = new Set(["Rejected", "Split", "Failed"]);
const IN_BAR = ["running", "split", "draining", "ready", "joining", "creating", "waiting", "rejected", "idle", "deleting", "failed"];

function section(title, ...children) {
  return make("section", { className: "panel-section" }, make("h2", {}, title), ...children);
}

/** Create a table. In a narrow window, a table with the name `stacked` shows each row as a block. */
function table(caption, heads, name = "") {
  const body = make("tbody");
  const head = make("tr", {}, ...heads.map(([text, name]) => make("th", { scope: "col", className: name ?? "" }, text)));
  const node = make("table", { className: name }, make("caption", { className: "hidden" }, caption), make("thead", {}, head), body);
  const attributes = { role: "region", "aria-label": caption };
  return { body, head, node: make("div", { className: "table-box", tabIndex: 0, attributes }, node) };
}

function meter(used, most) {
  const share = most ? used / most : used ? 1 : 0;
  const fill = make("span", { className: "fill" });
  fill.style.width = `${Math.min(100, share * 100).toFixed(1)}%`;
  const level = share >= 1 ? "full" : share >= 0.9 ? "high" : "";
  const attributes = { role: "meter", "aria-valuemin": "0", "aria-valuemax": String(most), "aria-valuenow": String(used) };
  attributes["aria-label"] = `${used} of ${most} used`;
  return make("span", { className: `meter ${level}`, attributes }, fill);
}

function backoffRow() {
  const cells = Array.from({ length: 5 }, () => make("td"));
  const [where, kind, message, failures, until] = cells;
  const name = make("span", { className: "strong" });
  const shape = make("span", { className: "muted block" });
  where.append(name, shape);
  const time = make("time", { className: "nowrap" });
  const since = make("time", { className: "muted block nowrap" });
  until.append(time, since);
  kind.className = "nowrap";
  failures.className = "numeric";
  message.className = "message";
  const node = make("tr", {}, ...cells);
  keepTimes(node);
  return {
    node,
    end: () => dropTimes(node),
    update(backoff) {
      const parts = [backoff.zone, backoff.machine_type, backoff.terms].filter(Boolean);
      setText(name, parts.length ? parts.join(" · ") : backoff.capacity);
      setText(shape, backoff.shape || "one slice");
      setText(kind, backoff.kind.replaceAll("_", " "));
      setText(message, backoff.message);
      setText(failures, number(backoff.failures));
      setTime(time, "in", backoff.until);
      setTime(since, "failing", backoff.since);
    },
  };
}

/** Return chips and cost by key. Requested and rejected chips are counted from slices, all other chips from node pools. */
function sums(store, keyOfSlice, keyOfPool) {
  const found = new Map();
  const add = (key, state, chips) => {
    if (!found.has(key)) found.set(key, {});
    const by = found.get(key);
    by[state] = (by[state] ?? 0) + chips;
  };
  for (const slice of store.slices.values()) {
    if (slice.state === "waiting" || slice.state === "rejected") add(keyOfSlice(slice), slice.state, slice.chips);
  }
  for (const pool of store.pools.values()) {
    add(keyOfPool(pool), pool.state, pool.chips);
    if (pool.cost_per_hour !== null) add(keyOfPool(pool), "cost", pool.cost_per_hour);
  }
  return [...found].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
}

function showSums({ body, head }, entries, isPriced, store) {
  head.lastElementChild.hidden = !isPriced;
  const rows = entries.map(([key, by]) => [
    key || "unknown",
    by.cost ?? 0,
    ...USES.map(([, names]) => names.reduce((sum, each) => sum + (by[each] ?? 0), 0)),
  ]);
  const used = rows.filter(([, ...values]) => values.some(Boolean));
  showTexts(body, [isPriced, ...used], (row) => {
    if (!Array.isArray(row)) return "";
    const [key, cost, ...values] = row;
    const cells = values.map((each) => make("td", { className: `numeric${each ? "" : " zero"}` }, number(each)));
    if (isPriced) cells.push(make("td", { className: "numeric" }, `${costInWords(cost, store)}/h`));
    return make("tr", {}, make("th", { scope: "row" }, key), ...cells);
  });
}

export function makeCapacity(panel) {
  const tiles = make("dl", { className: "tiles" });
  const bar = make("div", { className: "stack", attributes: { role: "img" } });
  const legend = make("p", { className: "legend" });
  const limits = table("Limits", [["Setting"], ["Counted for"], ["Used", "numeric"], ["Share", "wide"], ["Limit", "numeric"]], "stacked limits");
  const noLimits = make("p", { className: "muted" }, "No limit is set. MAX_CHIPS and the others in the settings bound what may be spent.");
  const operations = make("div", { className: "operations" });
  const backoffs = table("Back-off", [["Capacity"], ["Reason"], ["Message", "wide"], ["Failures", "numeric"], ["Next try"]], "stacked backoffs");
  const noBackoffs = make("p", { className: "muted" }, "Nothing is backed off: every capacity is tried as soon as a slice needs it.");
  const uses = [...USES.map(([name]) => [name, "numeric"]), ["Cost", "numeric"]];
  const accelerators = table("Chips by accelerator", [["Accelerator"], ...uses]);
  const namespaces = table("Chips by namespace", [["Namespace"], ...uses]);
  const alerts = make("div");
  const empty = make("div", { className: "empty" }, make("h2", {}, "Nothing to sum up"));
  empty.append(make("p", {}, "Capacity is shown by the process that leads, once it has decided for the first time."));
  const parts = [
    section("Chips", tiles, bar, legend),
    section("Limits", limits.node, noLimits),
    section("Node pool operations", operations),
    section("Back-off", backoffs.node, noBackoffs),
    section("By accelerator", accelerators.node),
    section("By namespace", namespaces.node),
    section("Alerts", alerts),
  ];
  panel.append(...parts, empty);
  const keyed = new Keyed(backoffs.body, backoffRow);

  function render(store) {
    const capacity = store.summary?.capacity;
    for (const part of parts) part.hidden = !capacity;
    empty.hidden = Boolean(capacity);
    if (!capacity) return;
    const costs = [...store.pools.values()].map((pool) => pool.cost_per_hour).filter((each) => each !== null);
    const isPriced = costs.length > 0;
    showChips(capacity.chips, isPriced ? costs.reduce((sum, each) => sum + each, 0) : null, store);
    showTexts(limits.body, capacity.limits, ({ name, scope, used, most }) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, make("code", {}, name)),
        make("td", {}, SCOPES[scope] ?? scope, used > most ? make("span", { className: "muted block" }, ABOVE) : ""),
        make("td", { className: "numeric" }, number(used)),
        make("td", {}, meter(used, most)),
        make("td", { className: "numeric" }, number(most)),
      ),
    );
    limits.node.hidden = !capacity.limits.length;
    noLimits.hidden = capacity.limits.length > 0;
    showOperations(capacity);
    keyed.show(capacity.backoffs.map((each, index) => [`${index} ${each.capacity}`, each]));
    backoffs.node.hidden = !capacity.backoffs.length;
    noBackoffs.hidden = capacity.backoffs.length > 0;
    showSums(accelerators, sums(store, (slice) => slice.accelerator, (pool) => pool.accelerator), isPriced, store);
    showSums(namespaces, sums(store, (slice) => namespaceOf(slice.workload), (pool) => pool.namespace), isPriced, store);
    const told = store.summary.alerts;
    showTexts(alerts, told.length ? told : [{ message: "No alerts." }], ({ kind, message }) =>
      make("p", { className: kind ? "" : "muted" }, ...(kind ? [icon("warning"), make("strong", {}, `${kind.replaceAll("_", " ")} `)] : []), message),
    );
  }

  function showChips(chips, cost, store) {
    const of = (names) => names.reduce((sum, each) => sum + (chips[each] ?? 0), 0);
    const rows = USES.map(([name, names, words]) => [name, of(names), words]).filter(([name, value]) => value || !RARE.has(name));
    if (cost !== null) rows.push([`${["Cost", store.summary.capacity.currency].filter(Boolean).join(", ")} an hour`, cost, "of the hosts that exist, by CHIP_HOUR_PRICES"]);
    showTexts(tiles, rows, ([name, value, words]) =>
      make(
        "div",
        { className: `tile${value ? "" : " zero"}` },
        make("dt", {}, name),
        make("dd", {}, name.startsWith("Cost") ? costInWords(value) : number(value)),
        make("dd", { className: "muted" }, words),
      ),
    );
    const shown = IN_BAR.filter((each) => chips[each]);
    const total = of(shown);
    const entries = shown.map((each) => [each, chips[each]]);
    showTexts(bar, entries, ([state, value]) => {
      const part = make("span", { className: `part s-${state}`, title: `${STATES[state]}: ${number(value)} chips` });
      part.style.flexGrow = String(value);
      return part;
    });
    bar.hidden = !total;
    setAttribute(bar, "aria-label", entries.map(([state, value]) => `${STATES[state]} ${number(value)} chips`).join(", "));
    showTexts(legend, total ? entries : [null], (entry) => {
      if (entry === null) return document.createTextNode("There are no chips, and none are requested.");
      const chip = stateChip();
      chip.update(entry[0]);
      return make("span", { className: "legend-item" }, chip.node, `${number(entry[1])} (${percent(entry[1] / total)})`);
    });
  }

  function showOperations({ operations: count, operations_limit: limit }) {
    showTexts(operations, [[count, limit]], () => {
      const words = limit === null ? `${number(count)} in progress. GKE has not rejected any operation yet.` : `${number(count)} in progress of ${number(limit)} that GKE accepts at once, as far as is known.`;
      const node = make("p", {}, words);
      if (limit !== null) node.append(meter(count, limit));
      return node;
    });
  }

  return { render };
}

