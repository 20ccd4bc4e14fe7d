// The view "Activity": the last decisions and their results, newest first.

import { Keyed, icon, make, setText, showTexts } from "./dom.js";
import { matcher, nameOf, words } from "./query.js";
import { dayAndTime } from "./times.js";

function entryRow(entry, links) {
  const at = dayAndTime(Date.parse(entry.at));
  const when = make("time", { className: "when", dateTime: entry.at, title: at });
  when.append(make("span", { className: "muted" }, at.slice(0, 10)), at.slice(10));
  const kind = make("span", { className: `badge k-${entry.kind}` }, entry.kind);
  const text = make("p", { className: "entry-text" }, entry.message);
  if (entry.warning) text.prepend(icon("warning"), make("span", { className: "hidden" }, "Warning: "));
  const about = make("p", { className: "entry-about muted" });
  if (entry.workload) about.append(make("a", { href: links({ view: "detail", id: entry.workload }) }, nameOf(entry.workload)));
  if (entry.pool) about.append(make("a", { className: "pool-name", href: links({ view: "detail", id: entry.pool }) }, entry.pool));
  const node = make("li", { className: entry.warning ? "entry warning" : "entry" }, when, kind, make("div", { className: "entry-body" }, text, about));
  return { node, update: () => undefined };
}

export function makeActivity(panel, links) {
  const count = make("p", { className: "muted count-line", attributes: { "aria-live": "off" } });
  const list = make("ol", { className: "entries", attributes: { reversed: "" } });
  const empty = make("div", { className: "empty" });
  panel.append(count, list, empty);
  let entries = new Map();
  const keyed = new Keyed(list, (number) => entryRow(entries.get(number), links));

  function render(store, query) {
    // Each process numbers its entries from 1, so the key of an entry also contains the start of the process.
    const mark = `${store.about?.started_at} `;
    const matches = matcher({ ...query, accelerator: "", state: "" });
    const shown = store.activity.filter(
      (each) =>
        (!query.kind || each.kind === query.kind) && (!query.warnings || each.warning) && matches(about(each)),
    );
    entries = new Map(shown.toReversed().map((each) => [mark + each.number, each]));
    keyed.show(entries, () => false);
    const all = store.activity.length;
    setText(count, all === shown.length ? `${all} entries, newest first` : `${shown.length} of ${all} entries, newest first`);
    count.hidden = !all;
    empty.hidden = shown.length > 0;
    const isFiltered = all > 0 && (words(query).length || query.kind || query.namespace || query.warnings);
    showTexts(empty, [isFiltered ? "Nothing matches these filters" : "Nothing has been decided since this process started"], (each) =>
      make("div", {}, make("h2", {}, each), make("p", {}, "The last 500 creates, deletes, changes of node pools, notices and alerts are listed here.")),
    );
  }

  return { render };
}

const abouts = new WeakMap();

/** Return the object by which filters match an entry, with the fields of a slice. */
function about(entry) {
  let found = abouts.get(entry);
  if (found === undefined) abouts.set(entry, (found = { workload: entry.workload, pool: entry.pool, message: entry.message, kind: entry.kind }));
  return found;
}
