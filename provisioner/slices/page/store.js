// The latest document of the API, and the ids of its items that changed.

import { noteServerTime } from "./times.js";

const LISTS = { workloads: "id", slices: "id", pools: "name", tracks: "pool" };

export class Store {
  about = null;
  leading = true;
  /** Name of the leading pod; empty if unknown. */
  leader = "";
  problems = [];
  /** Whether this process has decided nothing for a minute. */
  stalled = false;
  /** The view without its lists; null before the first decision, or if another process leads. */
  summary = null;
  workloads = new Map();
  slices = new Map();
  pools = new Map();
  tracks = new Map();
  activity = [];
  /** Ids of items that changed since the last call of `takeChanged`, by list; null if everything changed. */
  #changed = null;

  get loaded() {
    return this.about !== null;
  }

  /** Replace the data by a document, and record the changes. */
  load(document) {
    const { view } = document;
    const lists = { workloads: view?.workloads, slices: view?.slices, pools: view?.pools, tracks: document.tracks };
    for (const [name, key] of Object.entries(LISTS)) {
      const before = this[name];
      this[name] = new Map((lists[name] ?? []).map((item) => [item[key], item]));
      if (this.#changed === null) continue;
      for (const [id, item] of this[name]) {
        if (before.has(id) && JSON.stringify(before.get(id)) === JSON.stringify(item)) continue;
        this.#changed[name].add(id);
      }
      for (const id of before.keys()) if (!this[name].has(id)) this.#changed[name].add(id);
    }
    this.about = document.about;
    this.leading = document.leading;
    this.leader = document.leader;
    this.problems = document.problems;
    this.stalled = document.stalled;
    this.summary = view ? { at: view.at, alerts: view.alerts, capacity: view.capacity } : null;
    this.activity = document.activity;
    noteServerTime(document.served_at);
  }

  /** Return the ids of items that changed since the last call, by list; null if everything changed. */
  takeChanged() {
    const changed = this.#changed;
    this.#changed = Object.fromEntries(Object.keys(LISTS).map((name) => [name, new Set()]));
    return changed;
  }

  /** Return the node pools without a slice, or whose slice counts on another pool; not those that split slices name. */
  poolsWithoutSlice() {
    return [...this.pools.values()].filter((pool) => {
      const slice = this.slices.get(pool.slice);
      return slice?.pool !== pool.name && !(slice && pool.state === "split");
    });
  }
}
