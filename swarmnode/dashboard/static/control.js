// Pause and resume, with the key that `swarmnode dashboard` puts behind the # of the address.

import { setText } from "./dom.js";

const STORED = "swarmnode-key";

export class Control {
  constructor({ button, note }) {
    this.button = button;
    this.note = note;
    this.key = takeKey();
    this.node = null;
    this.busy = false;
    this.said = ""; // about the last change that was asked for
    button.addEventListener("click", () => this.change());
    addEventListener("hashchange", () => {
      this.key = takeKey();
      this.update(this.node);
    });
  }

  update(node) {
    this.node = node;
    const isPaused = node?.state === "paused";
    setText(this.button, isPaused ? "Resume training" : "Pause training");
    this.button.disabled = this.busy || !node?.can_pause || this.key === "";
    if (this.key === "") {
      setText(this.note, "To pause from here, open the address that `swarmnode dashboard` prints.");
    } else if (node !== null && !node.can_pause) {
      setText(this.note, "There is nothing to pause: this node does not train now.");
    } else {
      setText(this.note, this.said);
    }
  }

  async change() {
    const wanted = this.node?.state === "paused" ? "resume" : "pause";
    this.busy = true;
    this.say(wanted === "pause" ? "Pausing after this step…" : "Training goes on…");
    try {
      await post(`/${wanted}`, this.key);
    } catch (error) {
      this.say(String(error.message));
    } finally {
      this.busy = false;
      this.update(this.node);
    }
  }

  say(text) {
    this.said = text;
    this.update(this.node);
  }

  // What was asked for has become so, or something else has happened since.
  stateChanged() {
    this.said = "";
  }
}

// A reload keeps the key, other tabs and the history of the browser do not get it.
function takeKey() {
  const given = location.hash.slice(1);
  if (/^[A-Za-z0-9_-]{16,}$/.test(given)) {
    sessionStorage.setItem(STORED, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(STORED) ?? "";
}

async function post(path, key) {
  const headers = { "content-type": "application/json", "x-swarmnode-key": key };
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers, body: "{}" });
  } catch {
    throw new Error("The node did not answer: is it still running?");
  }
  if (!answer.ok) {
    const refusal = await answer.json().catch(() => ({}));
    throw new Error(refusal.error ?? `The node answered with status ${answer.status}.`);
  }
}
