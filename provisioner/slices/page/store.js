// The latest document of the API, kept up to date by its changes.

import { noteServerTime } from "./times.js";

const LISTS = { workloads: "id", slices: "id", pools: "name", tracks: "pool" };

/** What changed since the last look: null for everything, else the ids by list. */
export class Store {
  version = 0;
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
  #changed = null;

  get loaded() {
    return this.about !== null;
  }

  /** Take over everything. */
  load(document) {
    const { view } = document;
    this.version = document.version;
    this.about = document.about;
    this.#head(document, view);
    const lists = { workloads: view?.workloads, slices: view?.slices, pools: view?.pools, tracks: document.tracks };
    for (const [name, key] of Object.entries(LISTS)) {
      this[name] = new Map((lists[name] ?? []).map((item) => [item[key], item]));
    }
    this.activity = document.activity;
    this.#changed = null;
    noteServerTime(document.served_at, { fresh: true });
  }

  /** Take over one change. Returns whether it continues what is here. */
  apply(change) {
    if (!this.loaded || change.version !== this.version + 1) return false;
    this.version = change.version;
    this.#head(change, change.summary);
    for (const name of Object.keys(LISTS)) {
      for (const [key, item] of Object.entries(change.changed[name] ?? {})) {
        this[name].set(key, item);
        this.#changed?.[name].add(key);
      }
      for (const key of change.gone[name] ?? []) {
        this[name].delete(key);
        this.#changed?.[name].add(key);
      }
    }
    const forgotten = new Set(change.gone.activity);
    if (forgotten.size || change.activity.length) {
      this.activity = [...this.activity.filter((entry) => !forgotten.has(entry.number)), ...change.activity];
    }
    noteServerTime(change.served_at);
    return true;
  }

  /** Return what changed since the last call; null for everything. */
  takeChanged() {
    const changed = this.#changed;
    this.#changed = Object.fromEntries(Object.keys(LISTS).map((name) => [name, new Set()]));
    return changed;
  }

  #head(source, summary) {
    this.leading = source.leading;
    this.leader = source.leader;
    this.problems = source.problems;
    this.stalled = source.stalled;
    this.summary = summary
      ? { at: summary.at, alerts: summary.alerts, capacity: summary.capacity }
      : null;
  }

  /** Node pools that serve no slice, or not as the one that their slice counts on. */
  poolsWithoutSlice() {
    return [...this.pools.values()].filter((pool) => this.slices.get(pool.slice)?.pool !== pool.name);
  }
}
