// The connection to the API: requests the document at intervals. The server sends it only if it changed.

const POLL = 2000;
const POLL_HIDDEN = 30_000;
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30_000;
const ANSWER_WITHIN = 30_000;

/** Call a function that loads data, and record its duration for the browser's developer tools. */
function measured(call) {
  const began = performance.now();
  call();
  performance.clearMeasures("data");
  performance.measure("data", { start: began });
}

/** Requests the document repeatedly; calls `onState({kind, since})` when the kind becomes live or lost. */
export class Connection {
  #store;
  #onData;
  #onState;
  #tag = null;
  #isAsking = false;
  #wait = FIRST_WAIT;
  #kind = "connecting";
  #timer = 0;

  constructor(store, onData, onState) {
    this.#store = store;
    this.#onData = onData;
    this.#onState = onState;
    addEventListener("online", () => this.ask());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.ask();
    });
  }

  /** Send a request now, and the next one after the interval. */
  async ask() {
    if (this.#isAsking) return;
    this.#isAsking = true;
    clearTimeout(this.#timer);
    let wait = document.hidden ? POLL_HIDDEN : POLL;
    try {
      await this.#load();
      this.#wait = FIRST_WAIT;
      this.#become("live");
    } catch {
      this.#become("lost");
      wait = this.#wait * (0.8 + 0.4 * Math.random());
      this.#wait = Math.min(LONGEST_WAIT, this.#wait * 2);
    }
    this.#isAsking = false;
    this.#timer = setTimeout(() => this.ask(), wait);
  }

  async #load() {
    const headers = this.#tag ? { "If-None-Match": this.#tag } : {};
    const signal = AbortSignal.timeout(ANSWER_WITHIN);
    const answer = await fetch("api/v1/board", { cache: "no-store", headers, signal });
    if (answer.status === 304) return;
    if (!answer.ok) throw new Error(`api/v1/board: ${answer.status}`);
    const text = await answer.text();
    measured(() => this.#store.load(JSON.parse(text)));
    this.#tag = answer.headers.get("ETag");
    this.#onData();
  }

  #become(kind) {
    if (kind === this.#kind) return;
    this.#kind = kind;
    this.#onState({ kind, since: Date.now() });
  }
}
