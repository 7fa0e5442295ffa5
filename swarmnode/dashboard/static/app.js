// The page: what the node says, second by second, shown by its parts.

import { LossChart } from "./chart.js";
import { Control } from "./control.js";
import { byId, setFacts, setText } from "./dom.js";
import { bytes, compact, count, duration, loss, milliseconds, tone } from "./format.js";
import { SwarmMap } from "./map.js";
import { Share } from "./share.js";
import { showLine, showMembers, showSnapshots } from "./tables.js";

const RETRY_MS = 3000;

const control = new Control({ button: byId("pause"), note: byId("control-note") });
const share = new Share({ button: byId("share"), note: byId("share-note"), control });
const map = new SwarmMap({ root: byId("map"), count: byId("map-count"), legend: byId("map-legend") });
const chart = new LossChart({
  root: byId("loss"),
  readout: byId("loss-readout"),
  ranges: byId("ranges"),
  scales: byId("scales"),
  legend: byId("loss-legend"),
});
let source = null;
let retry = null;
let lastState = "";

function showOverview(overview) {
  const { node } = overview;
  document.title = `${node.swarm}: ${node.state}, swarmnode`;
  setText(byId("swarm"), node.swarm);
  setText(byId("recipe"), recipe(node));
  showOwn(node);
  showTiles(overview);
  map.update(overview);
  showMembers(byId("members"), overview);
  showLine(byId("line"), node);
  const hidden = overview.members_known - overview.members.length;
  setText(byId("members-note"), hidden > 0 ? `${hidden} more are not listed` : "");
  showSnapshots(byId("snapshots"), overview.snapshots);
  setText(byId("snapshots-note"), overview.snapshots.length ? "" : "no member says that it holds one yet");
}

function recipe(node) {
  if (!node.task) return "waiting for the manifest of the swarm";
  return `${node.task} · ${compact(node.numel)} parameters · ${node.strategy} · ${node.codec}`;
}

function showOwn(node) {
  if (node.state !== lastState) control.stateChanged();
  lastState = node.state;
  setText(byId("state"), node.state);
  byId("state").dataset.tone = tone(node.state);
  setText(byId("reason"), node.reason);
  setText(byId("own-name"), node.node_name ? `${node.node_name} · ${node.peer}` : node.peer);
  byId("alarm").hidden = node.alarm === "";
  setText(byId("alarm"), node.alarm);
  control.update(node);
  share.update();
  setFacts(byId("own-facts"), [
    ["Role", node.role],
    ["Connection", `${node.connectivity}: ${node.connectivity_why}`],
    ["Addresses it was given", given(node.bootstraps)],
    ["Device", node.device || "–"],
    ["Step time", milliseconds(node.step_time_s)],
    ["Sent", bytes(node.sent_bytes)],
    ["Received", bytes(node.received_bytes)],
    ["Snapshot at step", count(node.snapshot_step)],
    ["Worker restarts", count(node.worker_restarts)],
    ["Running for", duration(node.uptime_s)],
    ["Version", node.version],
  ]);
}

function given(bootstraps) {
  const words = Object.entries(bootstraps).filter(([, n]) => n > 0);
  return words.map(([state, n]) => `${n} ${state}`).join(", ") || "none";
}

function showTiles(overview) {
  const { node } = overview;
  const ended = node.exchanges_aborted + node.exchanges_declined;
  setFacts(byId("tiles"), [
    ["Swarm loss", loss(overview.swarm_loss), "mean, held-out data"],
    ["This node's loss", loss(node.eval_loss), `step ${count(node.step)}`],
    ["Members here", count(overview.members_alive), `${compact(overview.swarm_steps)} steps together`],
    ["Exchanges", compact(node.exchanges_committed), `${compact(ended)} declined or aborted`],
  ]);
}

// --- the stream -----------------------------------------------------------------------------

function connect() {
  disconnect();
  source = new EventSource("/events");
  on("history", (history) => chart.replace(history.samples));
  on("sample", (sample) => chart.add(sample));
  on("overview", (overview) => {
    setLink("live", "live");
    showOverview(overview);
  });
  source.onerror = () => {
    setLink("lost", "no answer from the node");
    control.update(null);
    // A refusal closes the stream for good: the node may have been busy, or another one.
    if (source?.readyState === EventSource.CLOSED) retry = setTimeout(connect, RETRY_MS);
  };
}

function on(name, show) {
  source.addEventListener(name, (event) => show(JSON.parse(event.data)));
}

function disconnect() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

function setLink(state, text) {
  byId("link-state").dataset.state = state;
  setText(byId("link-state"), text);
}

// A page that is not looked at costs the node nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    disconnect();
    setLink("wait", "resting");
  } else {
    connect();
  }
});
connect();
