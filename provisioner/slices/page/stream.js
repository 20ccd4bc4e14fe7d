// The connection: server-sent events; where these cannot be had, the document is asked for now and then.

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30_000;
const POLL = 5000;
/** A stream that says nothing for so long is looked after: a sleeping laptop leaves connections that are dead. */
const SILENCE = 15_000;
const ANSWER_WITHIN = 10_000;

async function ask(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

/** Take over data, and let the browser's tools see how long it takes. */
function measured(call) {
  const began = performance.now();
  const result = call();
  performance.clearMeasures("data");
  performance.measure("data", { start: began });
  return result;
}

/** Follow the board: `onState({kind, since, retryAt})` with kind connecting, live, polling or lost. */
export class Connection {
  #store;
  #onData;
  #onState;
  #source = null;
  #wait = FIRST_WAIT;
  #lostSince = null;
  #heardAt = 0;
  #timer = 0;

  constructor(store, onData, onState) {
    this.#store = store;
    this.#onData = onData;
    this.#onState = onState;
    setInterval(() => this.#lookAfter(), SILENCE / 3);
    addEventListener("online", () => this.retry());
  }

  start() {
    clearTimeout(this.#timer);
    this.#source?.close();
    const source = new EventSource("api/v1/events");
    this.#source = source;
    this.#heardAt = Date.now();
    source.addEventListener("board", ({ data }) => {
      measured(() => this.#store.load(JSON.parse(data)));
      this.#heard();
    });
    source.addEventListener("change", ({ data }) => {
      // A change that does not follow on what is here: begin with everything again.
      if (measured(() => this.#store.apply(JSON.parse(data)))) this.#heard();
      else this.start();
    });
    source.addEventListener("error", () => {
      if (this.#source === source) this.#failed();
    });
  }

  /** Try at once. */
  retry() {
    if (this.#lostSince !== null) this.start();
  }

  #heard() {
    this.#heardAt = Date.now();
    this.#wait = FIRST_WAIT;
    this.#lostSince = null;
    this.#onState({ kind: "live" });
    this.#onData();
  }

  async #failed() {
    // The browser's own attempts have no back-off, and it gives up on a 503.
    this.#source?.close();
    this.#source = null;
    this.#lostSince ??= Date.now();
    try {
      this.#store.load(await ask("api/v1/board"));
      this.#lostSince = null;
      this.#onState({ kind: "polling" });
      this.#onData();
      this.#again(POLL);
    } catch {
      this.#onState({ kind: "lost", since: this.#lostSince, retryAt: Date.now() + this.#wait });
      this.#again(this.#wait * (0.8 + 0.4 * Math.random()));
      this.#wait = Math.min(LONGEST_WAIT, this.#wait * 2);
    }
  }

  #again(wait) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.start(), wait);
  }

  async #lookAfter() {
    const source = this.#source;
    if (source === null || Date.now() - this.#heardAt < SILENCE) return;
    this.#heardAt = Date.now();
    try {
      const { version, about } = await ask("api/v1/about");
      // One version more may be on its way. A process that was started since counts anew.
      const isBehind = version > this.#store.version + 1 || about.started_at !== this.#store.about?.started_at;
      if (this.#source === source && isBehind) this.start();
    } catch {
      if (this.#source === source) this.#failed();
    }
  }
}
