// Totals above the board: slices and chips by state, cost, unused chips, and causes of waits.

import { make, showTexts } from "./dom.js";
import { countHosts } from "./states.js";
import { duration, serverNow } from "./times.js";

/** Totals in their order: title, states that are counted, and explanation. */
const TOTALS = [
  ["Rejected", ["rejected"], "slices that get no node pool unless their workload or a setting is changed"],
  ["Failed", ["failed"], "slices and node pools that failed"],
  ["Split", ["split"], "slices that do not have one node pool to themselves"],
  ["Waiting", ["waiting"], "slices without a node pool"],
  ["Starting", ["creating", "joining", "ready"], "slices whose node pool is created or has no pod yet"],
  ["Running", ["running", "draining"], "slices with pods on their node pool"],
  ["Idle", ["idle"], "node pools that nothing needs"],
  ["Deleting", ["deleting"], "node pools that are being deleted"],
];
/** Maximum number of causes of waits that are shown. */
const MOST_CAUSES = 4;
/** Totals that are shown only if they are not 0. */
const RARE = new Set(["Rejected", "Failed", "Split", "Deleting"]);

export const number = (value) => value.toLocaleString("en");
export const costInWords = (value, store) =>
  `${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${store?.summary?.capacity?.currency ?? ""}`.trim();
export const priced = (store) => [...store.pools.values()].some((each) => each.cost_per_hour !== null);
export const sum = (items, of) => items.reduce((all, each) => all + (of(each) ?? 0), 0);

/** Show why slices wait and what to do, with a line for each of the most frequent causes. */
export function showCauses(node, store) {
  const waiting = [...store.slices.values()].filter((each) => each.state === "waiting" && each.cause);
  const causes = [...Map.groupBy(waiting, (each) => each.cause)].toSorted(([, a], [, b]) => b.length - a.length);
  const left = causes.slice(MOST_CAUSES).flatMap(([, slices]) => slices);
  const shown = [...causes.slice(0, MOST_CAUSES), ...(left.length ? [["other causes", left]] : [])];
  const lines = shown.map(([cause, slices]) => [
    `${number(slices.length)} ${slices.length === 1 ? "slice waits" : "slices wait"} (${number(sum(slices, (each) => each.chips))} chips): `,
    cause,
    left === slices ? "" : slices.find((each) => each.next_step)?.next_step ?? "",
  ]);
  showTexts(node, lines, ([words, cause, step]) => make("li", {}, words, make("strong", {}, cause), `. ${step}`));
  node.hidden = !lines.length;
}

/** Return the unused chips and their cost: chips of unneeded or failed pools, and of ready hosts without pods. */
function wasted(pools) {
  const share = ({ state, hosts }) => (["idle", "failed"].includes(state) ? 1 : state === "running" ? countHosts(hosts).r / hosts.length : 0);
  return [Math.round(sum(pools, (each) => each.chips * share(each))), sum(pools, (each) => (each.cost_per_hour ?? 0) * share(each))];
}

/** Show the totals: slices and chips by state, cost, and the longest wait. */
export function showTotals(node, store) {
  const items = [...store.slices.values(), ...store.poolsWithoutSlice()];
  const counted = TOTALS.map(([name, among, words]) => {
    const found = items.filter((each) => among.includes(each.state));
    const chips = sum(found, (each) => each.chips);
    return [name, number(found.length), chips ? `(${number(chips)} chips)` : "", words, "of-state"];
  });
  const tiles = counted.filter(([name, value]) => value !== "0" || !RARE.has(name));
  if (priced(store)) {
    tiles.push(["Cost an hour", costInWords(sum([...store.pools.values()], (each) => each.cost_per_hour), store), "", "of all hosts that exist, by CHIP_HOUR_PRICES"]);
  }
  const [chips, cost] = wasted([...store.pools.values()]);
  if (chips) {
    const more = cost ? `${costInWords(cost, store)} an hour` : "";
    tiles.push(["Unused now", `${number(chips)} chips`, more, "of node pools that nothing needs or that failed, and of ready hosts without pods"]);
  }
  const waits = items.filter((each) => each.state === "waiting" && each.since).map((each) => Date.parse(each.since));
  if (waits.length) tiles.push(["Oldest wait", duration(serverNow() - Math.min(...waits)), "", "of a slice that waits now"]);
  showTexts(node, tiles, ([name, value, more, words, className = ""]) =>
    make("div", { title: words, className }, make("dt", {}, name), make("dd", {}, value, make("span", { className: "muted" }, more ? ` ${more}` : ""))),
  );
  node.hidden = !items.length;
}
