// Times and durations by the server's clock, and updates of the times on the screen.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** Interval in milliseconds between updates of ages, which are shown in minutes; countdowns change each second. */
const AGE_TICK = 10 * SECOND;

let offset = 0;

/** Compute the difference between the clocks of the server and the browser. */
export function noteServerTime(text) {
  offset = Date.parse(text) - Date.now();
}

export function serverNow() {
  return Date.now() + offset;
}

const two = (number) => String(number).padStart(2, "0");

/** Return a duration as text, in at most two units. */
export function duration(milliseconds) {
  const time = Math.max(0, milliseconds);
  if (time < MINUTE) return `${Math.floor(time / SECOND)} s`;
  if (time < HOUR) return `${Math.floor(time / MINUTE)} min`;
  if (time < DAY) return `${Math.floor(time / HOUR)} h ${two(Math.floor((time % HOUR) / MINUTE))} min`;
  return `${Math.floor(time / DAY)} d ${Math.floor((time % DAY) / HOUR)} h`;
}

/** Return an age as text. Below a minute it grows in steps of 10 s, so that the text changes with each update. */
function age(milliseconds) {
  if (milliseconds < AGE_TICK) return "< 10 s";
  return duration(milliseconds < MINUTE ? Math.floor(milliseconds / AGE_TICK) * AGE_TICK : milliseconds);
}

function countdown(time) {
  if (time < MINUTE || time >= HOUR) return duration(time);
  return `${Math.floor(time / MINUTE)} min ${two((time % MINUTE) / SECOND)} s`;
}

const WORDS = {
  for: (at, now) => age(now - at),
  over: (at, now) => `> ${age(now - at)}`,
  failing: (at, now) => `failing for ${age(now - at)}`,
  ago: (at, now) => `${age(now - at)} ago`,
  in: (at, now) => (at <= now ? "now" : `in ${countdown(Math.ceil((at - now) / SECOND) * SECOND)}`),
};

/** Return a time of day in UTC, as in the texts of the server. */
export function clockTime(milliseconds) {
  return `${new Date(milliseconds).toISOString().slice(11, 19)} UTC`;
}

export function dayAndTime(milliseconds) {
  return `${new Date(milliseconds).toISOString().slice(0, 10)} ${clockTime(milliseconds)}`;
}

/** Return a time of day, with the date unless it is today. */
export function timeOfDay(milliseconds) {
  const isToday = dayAndTime(milliseconds).startsWith(dayAndTime(serverNow()).slice(0, 10));
  return isToday ? clockTime(milliseconds) : dayAndTime(milliseconds);
}

/** Show a time in a <time> element, in the form `kind`; an empty text shows nothing. */
export function setTime(node, kind, text) {
  const mark = `${kind} ${text ?? ""}`;
  if (node._mark !== mark) {
    node._mark = mark;
    node._time = text ? { kind, at: Date.parse(text) } : null;
    if (text) {
      node.dateTime = text;
      node.title = dayAndTime(Date.parse(text));
    }
  }
  refresh(node, serverNow());
}

function refresh(node, now) {
  const text = node._time ? WORDS[node._time.kind](node._time.at, now) : "";
  if (node.textContent !== text) node.textContent = text;
}

const visible = new Set();
const observer = new IntersectionObserver((entries) => {
  const now = serverNow();
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      visible.add(target);
      for (const node of target.querySelectorAll("time")) refresh(node, now);
    } else visible.delete(target);
  }
});

/** Update the <time> elements of a row while the row is on the screen. */
export function keepTimes(row) {
  observer.observe(row);
}

export function dropTimes(row) {
  observer.unobserve(row);
  visible.delete(row);
}

let ticks = 0;

function tick() {
  ticks += 1;
  const ages = ticks % (AGE_TICK / SECOND) === 0;
  const now = serverNow();
  for (const row of visible) {
    for (const node of row.querySelectorAll("time")) {
      if (node._time && (ages || node._time.kind === "in")) refresh(node, now);
    }
  }
  if (ages) for (const call of onAges) call();
}

const onAges = new Set();

/** Register a function that is called with each update of the ages. */
export function everyAge(call) {
  onAges.add(call);
}

setInterval(() => {
  if (!document.hidden) tick();
}, SECOND);
