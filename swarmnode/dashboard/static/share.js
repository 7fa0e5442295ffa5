// The link to the swarm, asked for when it is wanted: with members that are there now.

import { setText } from "./dom.js";

export class Share {
  constructor({ button, note, control }) {
    this.button = button;
    this.note = note;
    this.control = control; // has the key: a person who may pause may also see addresses
    button.addEventListener("click", () => this.show());
  }

  update() {
    this.button.disabled = this.control.key === "";
  }

  async show() {
    try {
      const answer = await fetch("/link", { headers: { "x-swarmnode-key": this.control.key } });
      const said = await answer.json();
      if (!answer.ok) throw new Error(said.error);
      const closed = said.closed ? " (closed: no node gets in without an invite)" : "";
      setText(this.note, `'${said.link}'${closed}`);
    } catch (error) {
      setText(this.note, String(error.message));
    }
  }
}
