// Shows api/v1/partitions, and fetches it every two seconds. Data is inserted only as text, because users choose the names.

const LOOK_MS = 2000;

/** Create an element: properties by name, then children (nodes or text). */
function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** Format a duration in its largest unit, and from one hour on in two units. */
export function lasting(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  const hours = Math.floor(whole / 3600);
  if (hours < 24) return `${hours} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function table(head, rows) {
  const cells = head.map(([title, kind]) => make("th", { className: kind, scope: "col" }, title));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, index) => {
    const [content, kind] = Array.isArray(cell) ? cell : [cell, head[index][1]];
    return make("td", { className: kind }, content);
  })));
  return make("div", { className: "table" }, make("table", {}, make("thead", {}, make("tr", {}, ...cells)), make("tbody", {}, ...body)));
}

function show(id, empty, head, rows, leftOut = []) {
  const place = document.getElementById(id);
  place.className = rows.length ? "" : "empty";
  place.replaceChildren(rows.length ? table(head, rows) : empty);
  const more = leftOut.filter(([count]) => count).map(([count, what]) => `${count} more ${what}`);
  if (more.length) place.append(make("p", { className: "muted" }, `Not shown: ${more.join(", ")}.`));
}

function bar(line) {
  if (line.ipus === null) return "unknown";
  return make("progress", { max: line.ipus, value: line.ours + line.others, title: `${line.ours + line.others} of ${line.ipus} IPUs are in partitions` });
}

function render(document_) {
  const now = Date.parse(document_.served_at);
  const since = (moment) => lasting((now - Date.parse(moment)) / 1000);
  const role = document.getElementById("role");
  role.hidden = false;
  role.textContent = document_.leading ? "leader" : "not the leader";
  document.getElementById("release").textContent = `${document_.release}, ${document_.identity}`;
  const unread = document_.servers.filter((each) => each.problem).map((each) => `V-IPU server ${each.address} cannot be read: ${each.problem}`);
  document.getElementById("banners").replaceChildren(...[...document_.problems, ...unread].map((text) => make("p", { className: "banner" }, text)));
  const nodes = new Map(document_.servers.map((each) => [each.address, each.nodes || "all"]));
  show("supply", document_.decided_at ? "No allocation is known." : "Nothing has been decided yet.",
    [["Server", "name"], ["Nodes", "name"], ["Allocation", "name"], ["In partitions", "bar"], ["IPUs", "number"], ["Of this cluster", "number"], ["Of others", "number"], ["Free", "number"]],
    document_.supply.map((each) => [each.server, nodes.get(each.server) ?? "", each.allocation || "-", bar(each), `${each.ipus ?? "?"}`, `${each.ours}`, `${each.others}`, `${each.free ?? "?"}`]));
  show("waiting", "No pod waits.",
    [["Place", "number"], ["Namespace", "name"], ["Pod", "name"], ["IPUs", "number"], ["For", "number"], ["Why", ""]],
    [...document_.waiting.map((each) => [`${each.place}`, each.namespace, each.pod, `${each.ipus}`, since(each.since), each.why]),
      ...document_.rejected.map((each) => ["-", each.namespace, each.pod, "-", "-", [`Rejected: ${each.why}`, "lost"]])],
    [[document_.left_out.waiting, "pods that wait"], [document_.left_out.rejected, "rejected pods"]]);
  show("partitions", "This cluster has no partitions.",
    [["Pod", "name"], ["IPUs", "number"], ["Phase", ""], ["For", "number"], ["Partition", "name"], ["Server", "name"], ["Allocation", "name"], ["Why", ""]],
    document_.partitions.map((each) => [each.pod || "none", `${each.ipus}`, [each.phase, each.phase], since(each.since), each.id, each.server, each.allocation || "-", each.why]),
    [[document_.left_out.partitions, "partitions"]]);
}

async function look() {
  const live = document.getElementById("live");
  try {
    const answer = await fetch("api/v1/partitions", { cache: "no-store", signal: AbortSignal.timeout(30_000) });
    if (!answer.ok) throw new Error(`the controller answers ${answer.status}`);
    const found = await answer.json();
    render(found);
    live.className = "";
    live.textContent = `as of ${new Date(found.served_at).toLocaleTimeString()}`;
  } catch (error) {
    live.className = "stale";
    live.textContent = `the controller does not answer: ${error.message}`;
  } finally {
    setTimeout(look, LOOK_MS);
  }
}

look();
