// Members with their contributions, and snapshots. Rows are updated in place: a person may be
// reading or selecting in them.

import { element, setText, svg } from "./dom.js";
import { bytes, compact, count, loss, milliseconds, pathName, percent, stateOf, tone, weight } from "./format.js";

const GONE = ["dead", "left"];

export function showMembers(table, overview) {
  const all = Math.max(1, overview.swarm_steps);
  const members = [...overview.members].sort((one, other) => other.step - one.step);
  const rows = table.tBodies[0];
  fit(rows, members.length + (overview.others_steps > 0 ? 1 : 0), memberRow);
  members.forEach((member, place) => showMember(rows.rows[place], member, all));
  if (overview.others_steps > 0) showOthers(rows.rows[members.length], overview, all);
}

function memberRow() {
  const way = svg("line", { class: "way", x1: 2, x2: 26, y1: 6, y2: 6 });
  const share = element("div", { class: "share" }, element("div", { class: "bar" }, element("i")), element("b"));
  return element(
    "tr",
    {},
    element(
      "th",
      { scope: "row" },
      element("span", { class: "called" }),
      element("span", { class: "mono" }),
      element("span", { class: "you" }),
    ),
    element("td", {}, element("span", { class: "badge" })),
    element("td", {}, svg("svg", { class: "way-key", width: 28, height: 12, "aria-hidden": true }, way), element("span")),
    element("td", { class: "num wide" }),
    element("td", { class: "num wide" }),
    element("td", { class: "num" }),
    element("td", { class: "num" }),
    element("td", { class: "num wide" }),
    element("td", { class: "share-cell" }, share),
    element("td", { class: "wide mono" }),
  );
}

function showMember(row, member, all) {
  const [name, state, path, rtt, trust, lossCell, steps, tokens, share, version] = row.cells;
  row.className = GONE.includes(member.alive) ? "gone" : "";
  setText(name.children[0], member.node_name);
  setText(name.children[1], member.name);
  name.title = member.peer;
  setText(name.lastChild, member.is_self ? "this node" : "");
  const badge = state.firstChild;
  badge.hidden = false;
  setText(badge, stateOf(member));
  badge.dataset.tone = member.alive === "suspect" ? "warn" : tone(member.state);
  setPath(path, member);
  setText(rtt, milliseconds(member.rtt_s));
  setText(trust, weight(member.trust));
  setText(lossCell, loss(member.eval_loss));
  setText(steps, count(member.step));
  setText(tokens, compact(member.tokens));
  setShare(share, member.step / all);
  setText(version, member.version);
}

function setPath(cell, member) {
  const [key, text] = cell.children;
  key.classList.toggle("visually-hidden", member.path === "");
  key.firstChild.dataset.path = member.path;
  setText(text, member.is_self ? "" : pathName(member.path));
}

function setShare(cell, share) {
  const [bar, text] = cell.firstChild.children;
  bar.firstChild.style.width = `${Math.min(100, share * 100).toFixed(1)}%`;
  setText(text, percent(Math.min(1, share)));
}

function showOthers(row, overview, all) {
  const [name, state, path, rtt, trust, lossCell, steps, tokens, share, version] = row.cells;
  row.className = "gone";
  setText(name.children[0], "");
  setText(name.children[1], "others");
  name.title = "Members of earlier, and those beyond the end of this table";
  setText(name.lastChild, "");
  state.firstChild.hidden = true;
  setPath(path, { path: "", is_self: true });
  for (const cell of [rtt, trust, lossCell, version]) setText(cell, "");
  setText(steps, count(overview.others_steps));
  setText(tokens, compact(overview.others_tokens));
  setShare(share, overview.others_steps / all);
}

export function showSnapshots(table, snapshots) {
  const rows = table.tBodies[0];
  fit(rows, snapshots.length, snapshotRow);
  snapshots.forEach((snapshot, place) => {
    const [step, lossCell, size, holders, root] = rows.rows[place].cells;
    setText(step, count(snapshot.step));
    setText(lossCell, loss(snapshot.loss));
    setText(size, bytes(snapshot.size_bytes));
    const more = snapshot.n_holders - snapshot.holders.length;
    const names = snapshot.holders.join(", ") + (more > 0 ? ` and ${more} more` : "");
    setText(holders.firstChild, `${snapshot.n_holders}: `);
    setText(holders.lastChild, names);
    setText(root, snapshot.root);
  });
}

function snapshotRow() {
  return element(
    "tr",
    {},
    element("td", { class: "num" }),
    element("td", { class: "num" }),
    element("td", { class: "num" }),
    element("td", { class: "holders" }, element("span"), element("span", { class: "mono" })),
    element("td", { class: "wide mono" }),
  );
}

const PURPOSES = {
  exchange: "exchanges with other members",
  relaying: "relayed for others",
  snapshots: "snapshots of the model",
  state: "state, and how peers are found",
};

export function showLine(table, node) {
  const purposes = Object.keys(node.line_sent_bytes ?? {});
  const rows = table.tBodies[0];
  fit(rows, purposes.length, lineRow);
  purposes.forEach((purpose, place) => {
    const [name, sent, received] = rows.rows[place].cells;
    setText(name, PURPOSES[purpose] ?? purpose);
    setText(sent, bytes(node.line_sent_bytes[purpose]));
    setText(received, bytes(node.line_received_bytes[purpose] ?? 0));
  });
}

function lineRow() {
  const number = { class: "num" };
  return element("tr", {}, element("td"), element("td", number), element("td", number));
}

function fit(rows, wanted, make) {
  while (rows.rows.length > wanted) rows.lastElementChild.remove();
  while (rows.rows.length < wanted) rows.append(make());
}
