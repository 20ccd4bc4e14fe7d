// States of slices, node pools and hosts, with their texts, icons and order.

import { make, makeSvg, setAttribute, setClass, setText } from "./dom.js";

/** Titles of states: first states with problems, then states in the order in which a slice passes them. */
export const STATES = {
  rejected: "Rejected",
  failed: "Failed",
  split: "Split",
  waiting: "Waiting",
  creating: "Creating",
  joining: "Joining",
  ready: "Ready",
  running: "Running",
  draining: "Draining",
  idle: "Idle",
  deleting: "Deleting",
  none: "No pool",
};

export const STATE_HELP = {
  rejected: "The slice gets no node pool unless its workload or a setting is changed: see the reason",
  failed: "The node pool failed",
  split: "A slice of several hosts does not have one node pool to itself",
  waiting: "There is no node pool yet: see the reason",
  creating: "The create of the node pool has been sent",
  joining: "The node pool exists; not all of its hosts are ready",
  ready: "All hosts are ready; no pod is bound yet",
  running: "Pods run on the node pool",
  draining: "The workload has ended or is suspended; pods are still there",
  idle: "Nothing needs the node pool",
  deleting: "The node pool is being deleted",
  none: "The slice neither has nor wants a node pool",
};

const UNKNOWN = "none";

/** Create an icon with a word for a state. */
export function stateChip() {
  const use = makeSvg("use");
  const word = make("span");
  const node = make("span", { className: "chip" });
  node.append(makeSvg("svg", { class: "icon", "aria-hidden": "true" }, use), word);
  return {
    node,
    update(state) {
      const known = state in STATES ? state : UNKNOWN;
      setClass(node, `chip s-${known}`);
      setAttribute(use, "href", `#i-${known}`);
      setText(word, STATES[state] ?? state);
      if (node.title !== STATE_HELP[known]) node.title = STATE_HELP[known];
    },
  };
}

/** Meanings of the letters in `hosts`, from the best to the worst. */
export const HOSTS = {
  R: "running",
  r: "ready",
  c: "chips missing",
  j: "joining",
  ".": "absent",
};
const CLASSES = { R: "running", r: "ready", c: "missing", j: "joining", ".": "absent" };

export function countHosts(letters) {
  const counts = { R: 0, r: 0, c: 0, j: 0, ".": 0 };
  for (const letter of letters) counts[letter in counts ? letter : "."] += 1;
  return counts;
}

/** Return the distance between cells in pixels and the number of cells in a row, so that 2,000 hosts fit. */
function layout(count) {
  if (count <= 16) return [11, 16];
  if (count <= 64) return [9, 16];
  if (count <= 256) return [5, 32];
  return [3, 54];
}

const SHAPES = {
  R: (x, y, s) => `M${x} ${y}h${s}v${s}h-${s}z`,
  r: (x, y, s) => `M${x} ${y}h${s}v${s}h-${s}z`,
  c: (x, y, s) => `M${x} ${y}h${s}v${s}h-${s}zl${s} ${s}m0-${s}l-${s} ${s}`,
  j: (x, y, s) => `M${x} ${y}h${s}l-${s} ${s}z`,
  ".": (x, y, s) => `M${x} ${y}h${s}v${s}h-${s}z`,
};

/** Create a grid with a cell for each host. All cells of a state are one path, so the grid is cheap for any number of hosts. */
export function hostGrid() {
  const node = makeSvg("svg", { class: "hosts", role: "img" });
  let shown = null;
  return {
    node,
    update(letters) {
      if (letters === shown) return;
      shown = letters;
      const counts = countHosts(letters);
      const [pitch, columns] = layout(letters.length);
      const [inset, size] = pitch > 4 ? [0.5, pitch - 2] : [0, pitch - 1];
      const paths = [];
      let place = 0;
      for (const letter of Object.keys(HOSTS)) {
        let path = "";
        for (let index = 0; index < counts[letter]; index += 1, place += 1) {
          path += SHAPES[letter]((place % columns) * pitch + inset, Math.floor(place / columns) * pitch + inset, size);
        }
        if (path) paths.push(makeSvg("path", { class: `h-${CLASSES[letter]}`, d: path }));
      }
      const width = Math.max(1, Math.min(columns, letters.length)) * pitch;
      const height = Math.max(1, Math.ceil(letters.length / columns)) * pitch;
      setAttribute(node, "viewBox", `0 0 ${width} ${height}`);
      setAttribute(node, "width", String(width));
      setAttribute(node, "height", String(height));
      node.replaceChildren(makeSvg("title", {}, hostsInWords(letters)), ...paths);
    },
  };
}

export function hostsInWords(letters) {
  const counts = countHosts(letters);
  const parts = Object.entries(HOSTS).filter(([letter]) => counts[letter]);
  const words = parts.map(([letter, word]) => `${counts[letter]} ${word}`).join(", ");
  return `${letters.length} ${letters.length === 1 ? "host" : "hosts"}${words ? `: ${words}` : ""}`;
}

