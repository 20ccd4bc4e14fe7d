// The status page. The document of the API and the query of the URL determine what the page shows.

import { makeActivity } from "./activity.js";
import { makeBoard } from "./board.js";
import { makeCapacity } from "./capacity.js";
import { makeDetail } from "./detail.js";
import { Keyed, icon, make, setAttribute, setClass, setText, setTitled, showTexts } from "./dom.js";
import { Connection } from "./poll.js";
import { NO_FILTERS, VIEWS, address, isFiltered, matcher, namespaceOf, readQuery, states } from "./query.js";
import { STATES, STATE_HELP } from "./states.js";
import { Store } from "./store.js";
import { makeTimeline } from "./timeline.js";
import { clockTime, timeOfDay } from "./times.js";

const byId = (id) => document.getElementById(id);
const KINDS = ["create", "delete", "pool", "notice", "alert"];
const THEMES = { "": "System theme", light: "Light theme", dark: "Dark theme" };

const store = new Store();
let query = readQuery();
let connection = { kind: "connecting" };
let scheduled = false;
let isWhole = true;

const links = (changes) => address({ ...query, ...changes });
/** Return the address of a link. A link to another view drops all filters except those in `changes`; other links keep them. */
const fresh = (changes) => address(changes.view ? { ...NO_FILTERS, zoom: query.zoom, as: query.as, sort: query.sort, ...changes } : { ...query, ...changes });
const views = {
  board: makeBoard(byId("board"), fresh, links),
  timeline: makeTimeline(byId("timeline"), fresh),
  capacity: makeCapacity(byId("capacity")),
  activity: makeActivity(byId("activity"), fresh),
  detail: makeDetail(byId("detail"), fresh),
};
const stateButtons = new Keyed(byId("states"), stateButton);

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(render);
}

function render() {
  scheduled = false;
  const began = performance.now();
  renderHead();
  renderBanners();
  renderTabs();
  const changed = store.takeChanged();
  if (store.loaded) {
    renderFilters();
    views[query.view].render(store, query, isWhole ? null : changed);
    isWhole = false;
  }
  byId("loading").hidden = store.loaded;
  // Only the last measurement is kept, because a page may be open for weeks.
  performance.clearMeasures("render");
  performance.measure("render", { start: began });
}

function renderHead() {
  const { about } = store;
  if (!about) return;
  const cluster = [about.project, about.location, about.cluster].filter(Boolean).join(" / ");
  setTitled(byId("cluster"), cluster);
  setText(byId("release"), about.release);
  byId("release").title = `Process ${about.identity}, started ${about.started_at}`;
  const word = { live: "Live", lost: "Not connected", connecting: "Connecting" }[connection.kind];
  setText(byId("live-word"), word);
  setClass(byId("live"), `live ${connection.kind}`);
  setText(byId("role"), store.leading ? "Leader" : "Standby");
  const problems = store.problems.length + store.stalled + (store.summary?.alerts.length ?? 0);
  const lost = connection.kind === "lost" ? "Not connected: " : "";
  document.title = `${lost}${problems ? `(${problems}) ` : ""}${about.cluster || "TPU provisioner"} – TPU provisioner`;
}

function renderBanners() {
  const banners = [];
  if (connection.kind === "lost") {
    const since = clockTime(connection.since);
    banners.push(["lost", `Connection lost since ${since}, trying again.`, store.loaded ? "The page shows the state at that time." : ""]);
  }
  if (store.loaded) {
    if (!store.leading) {
      const who = store.leader ? `Pod ${store.leader} leads.` : "Another process leads.";
      banners.push(["info", who, `This one (${store.about.identity}) stands by: it decides nothing and shows no slices.`]);
    }
    for (const each of store.problems) banners.push(["problem", "No node pools are created or deleted at the moment:", each]);
    if (store.summary && (store.stalled || store.problems.length)) {
      banners.push(["problem", `Nothing has been decided since ${timeOfDay(Date.parse(store.summary.at))}.`, "The page shows that state."]);
    }
    if (store.summary?.capacity.creation_paused) {
      banners.push(["info", "Creation is paused.", "No node pool is created until an administrator resumes it."]);
    }
    for (const { kind, message } of store.summary?.alerts ?? []) {
      banners.push(["alert", `Alert, ${kind.replaceAll("_", " ")}:`, message]);
    }
  }
  showTexts(byId("banners"), banners, ([kind, title, text]) => {
    const words = make("p", {}, make("strong", {}, title), text ? ` ${text}` : "");
    const node = make("div", { className: `banner ${kind}` }, icon(kind === "info" ? "info" : "warning"), words);
    if (kind === "lost") {
      const button = make("button", { type: "button" }, "Try now");
      button.addEventListener("click", () => poll.ask());
      node.append(button);
    }
    return node;
  });
}

function renderTabs() {
  for (const view of VIEWS) {
    const tab = byId(`tab-${view}`);
    const isCurrent = view === query.view;
    setAttribute(tab, "aria-selected", String(isCurrent));
    setAttribute(tab, "tabindex", isCurrent || (view === "board" && query.view === "detail") ? "0" : "-1");
    // The tabs keep the filters of the current view.
    setAttribute(tab, "href", links({ view, id: "" }));
    byId(view).hidden = !isCurrent;
  }
  byId("detail").hidden = query.view !== "detail";
}

function options(select, all, values, current) {
  // A value in the URL that matches nothing is listed as well, so that users see it and can remove it.
  const offered = [...new Set(current ? [...values, current] : values)].sort();
  showTexts(select, [["", all], ...offered.map((each) => [each, each])], ([value, label]) => make("option", { value }, label));
  if (select.value !== current) select.value = current;
}

function renderFilters() {
  const { view } = query;
  byId("filters").hidden = view === "capacity" || view === "detail";
  const search = byId("search");
  if (search !== document.activeElement || search.dataset.typed !== "true") search.value = query.q;
  const slices = [...store.slices.values()];
  const pools = [...store.pools.values()];
  const namespaces = new Set([...store.workloads.values(), ...pools].map((each) => each.namespace).filter(Boolean));
  if (view === "activity") for (const each of store.activity) if (each.workload) namespaces.add(namespaceOf(each.workload));
  options(byId("namespace"), "All namespaces", namespaces, query.namespace);
  const accelerators = new Set([...slices, ...pools].map((each) => each.accelerator).filter(Boolean));
  options(byId("accelerator"), "All accelerators", accelerators, query.accelerator);
  options(byId("kind"), "All kinds", KINDS, query.kind);
  byId("warnings").checked = Boolean(query.warnings);
  byId("accelerator").hidden = view === "activity";
  byId("kind").hidden = byId("warnings-label").hidden = view !== "activity";
  byId("clear").hidden = !isFiltered(query);
  byId("clear").href = links(NO_FILTERS);
  // Number of slices and pools that each state would show, together with the other filters.
  const counts = {};
  const matches = matcher({ ...query, state: "" });
  for (const each of slices) if (matches(each, store.pools.get(each.pool))) counts[each.state] = (counts[each.state] ?? 0) + 1;
  for (const each of store.poolsWithoutSlice()) if (matches(each)) counts[each.state] = (counts[each.state] ?? 0) + 1;
  const chosen = states(query);
  byId("states").hidden = view === "activity";
  const shown = Object.keys(STATES).filter((each) => counts[each] || chosen.has(each));
  stateButtons.show(shown.map((each) => [each, { count: counts[each] ?? 0, isChosen: chosen.has(each) }]));
}

/** A filter by one state. While its number changes, it remains the same button, and so keeps the focus. */
function stateButton(state) {
  const count = make("b");
  const node = make("button", { type: "button", className: `filter s-${state}`, title: STATE_HELP[state] });
  node.append(icon(state), `${STATES[state]} `, count);
  node.addEventListener("click", () => {
    const chosen = states(query);
    if (!chosen.delete(state)) chosen.add(state);
    go(links({ state: [...chosen].join(",") }));
  });
  return {
    node,
    update({ count: value, isChosen }) {
      setText(count, value.toLocaleString("en"));
      setAttribute(node, "aria-pressed", String(isChosen));
    },
  };
}

/** Show another address. The browser's back button returns to the previous address. */
function go(search, { replace = false } = {}) {
  const before = query.view;
  history[replace ? "replaceState" : "pushState"](null, "", search);
  show();
  if (query.view !== before) scrollTo(0, 0);
}

function show() {
  query = readQuery();
  isWhole = true;
  schedule();
}

function listen() {
  addEventListener("popstate", () => {
    byId("search").dataset.typed = "";
    show();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    const href = link?.getAttribute("href");
    if (!isPlain || !(href?.startsWith("?") || href === "./")) return;
    event.preventDefault();
    byId("search").dataset.typed = "";
    go(href);
  });
  const search = byId("search");
  search.addEventListener("input", () => {
    // All typing in the search field is one step in the history, so one step back leads to the address before it.
    const isMore = search.dataset.typed === "true";
    search.dataset.typed = "true";
    go(links({ q: search.value }), { replace: isMore });
  });
  search.addEventListener("blur", () => {
    search.dataset.typed = "";
  });
  for (const name of ["namespace", "accelerator", "kind"]) {
    byId(name).addEventListener("change", (event) => go(links({ [name]: event.target.value })));
  }
  byId("warnings").addEventListener("change", (event) => go(links({ warnings: event.target.checked ? "1" : "" })));
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -VIEWS.indexOf(query.view), End: -1 - VIEWS.indexOf(query.view) }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const view = VIEWS.at((VIEWS.indexOf(query.view) + step) % VIEWS.length);
    go(links({ view }));
    byId(`tab-${view}`).focus();
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, select, textarea");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey && !byId("filters").hidden) {
      event.preventDefault();
      search.focus();
      search.select();
    }
    if (event.key === "Escape" && event.target === search) {
      search.dataset.typed = "";
      if (query.q) go(links({ q: "" }));
      search.blur();
    }
  });
  byId("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    setTheme(names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length], true);
  });
}

function setTheme(theme, isChosen) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  setText(byId("theme-word"), THEMES[theme]);
  byId("theme").title = `${THEMES[theme]}: change it`;
  if (!isChosen) return;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // The browser blocks storage, so the theme is lost when the page is left.
  }
}

listen();
// The column heads stick below the fixed top of the page, whose height may change.
new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${byId("top").offsetHeight}px`)).observe(byId("top"));
setTheme(document.documentElement.dataset.theme ?? "", false);
const poll = new Connection(store, schedule, (state) => {
  connection = state;
  schedule();
});
render();
poll.ask();
