// The latest document of the API, and which of its items have changed.

import { noteServerTime } from "./times.js";

const LISTS = { workloads: "id", slices: "id", pools: "name", tracks: "pool" };

export class Store {
  about = null;
  leading = true;
  /** The pod that leads; empty where none is known to. */
  leader = "";
  problems = [];
  /** Nothing has been decided for a minute. */
  stalled = false;
  /** The view without its lists; null before the first decision, and where another process leads. */
  summary = null;
  workloads = new Map();
  slices = new Map();
  pools = new Map();
  tracks = new Map();
  activity = [];
  /** What changed since the last look: null for everything, else the ids by list. */
  #changed = null;

  get loaded() {
    return this.about !== null;
  }

  /** Take over a document. */
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

  /** Return what changed since the last call; null for everything. */
  takeChanged() {
    const changed = this.#changed;
    this.#changed = Object.fromEntries(Object.keys(LISTS).map((name) => [name, new Set()]));
    return changed;
  }

  /** Node pools that serve no slice, or not as the one that their slice counts on. */
  poolsWithoutSlice() {
    return [...this.pools.values()].filter((pool) => this.slices.get(pool.slice)?.pool !== pool.name);
  }
}
