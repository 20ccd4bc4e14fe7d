// The query of the URL determines what the page shows, so that users can share a view by its address.

/** The views that have a tab, in the order of the tabs. */
export const VIEWS = ["board", "timeline", "capacity", "activity"];
const DEFAULTS = {
  view: "board",
  id: "",
  q: "",
  namespace: "",
  accelerator: "",
  state: "",
  sort: "",
  zoom: "1h",
  as: "chart",
  kind: "",
  warnings: "",
};

export function readQuery(search = location.search) {
  const parameters = new URLSearchParams(search);
  const query = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) query[name] = parameters.get(name) ?? DEFAULTS[name];
  if (query.view !== "detail" && !VIEWS.includes(query.view)) query.view = DEFAULTS.view;
  return query;
}

/** Return the address of a query, without parameters that have their default. */
export function address(query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== "" && value !== DEFAULTS[name]) parameters.set(name, value);
  }
  const text = parameters.toString();
  return text ? `?${text}` : "./";
}

export function isFiltered({ q, namespace, accelerator, state, kind, warnings }) {
  return Boolean(q || namespace || accelerator || state || kind || warnings);
}

export const NO_FILTERS = { q: "", namespace: "", accelerator: "", state: "", kind: "", warnings: "" };

export function words({ q }) {
  return q.toLowerCase().split(/\s+/).filter(Boolean);
}

export function states({ state }) {
  return new Set(state.split(",").filter(Boolean));
}

/** Return the namespace in the id of a workload, kind/namespace/name. */
export function namespaceOf(workload) {
  return workload.split("/")[1] ?? "";
}

export function nameOf(workload) {
  return workload.split("/").slice(1, 3).join("/");
}

export function kindOf(workload) {
  return workload.split("/")[0];
}

const texts = new WeakMap();

function textOf(item, pool) {
  const known = texts.get(item);
  if (known !== undefined && known.pool === pool) return known.text;
  const parts = [item.id, item.name, item.workload, item.pool, item.accelerator, item.machine_type, item.topology];
  parts.push(item.zone, item.capacity, item.reservation, item.reason, item.leader, item.message, item.kind);
  parts.push(...(item.notices ?? []).map((notice) => notice.reason));
  if (pool) parts.push(pool.zone, pool.capacity, pool.reservation);
  const text = parts.filter(Boolean).join(" ").toLowerCase();
  texts.set(item, { pool, text });
  return text;
}

/** Return a function that returns whether the query matches an item and, for a slice, its pool. */
export function matcher(query) {
  const wanted = words(query);
  const among = states(query);
  return (item, pool) =>
    (!query.namespace || (item.namespace ?? namespaceOf(item.workload ?? item.id ?? "")) === query.namespace) &&
    (!query.accelerator || item.accelerator === query.accelerator) &&
    (!among.size || among.has(item.state)) &&
    (!wanted.length || wanted.every((word) => textOf(item, pool).includes(word)));
}
