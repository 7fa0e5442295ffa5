// The swarm as a whole: how many there are, how fast they train, and when that ends.

import { niceLevels } from "./chart.js";
import { byId, element, setFacts, setText, svg } from "./dom.js";
import { clock, compact, count, day, duration, percent } from "./format.js";

const RETRY_MS = 3000;
const WIDTH = 900;
const HEIGHT = 220;
const EDGE = { left: 64, right: 14, top: 10, bottom: 26 };

let samples = [];

export function showOutlook(overview) {
  const { node, outlook, swarm_tokens: tokens } = overview;
  document.title = `${node.swarm} over time, swarmnode`;
  setText(byId("swarm"), node.swarm);
  setFacts(byId("tiles"), [
    ["Members here", count(overview.members_alive), `${count(outlook.members_max)} at the most so far`],
    ["Tokens a day", compact(outlook.tokens_per_day), `${compact(tokens)} so far`],
    ["Target", outlook.target_tokens ? compact(outlook.target_tokens) : "none", done(outlook, tokens)],
    ["Expected end", ...end(outlook, tokens, overview.unix_s)],
  ]);
}

function done({ target_tokens: target }, tokens) {
  return target ? `${percent(Math.min(1, tokens / target))} done` : "`swarmnode extend` sets one";
}

function end({ target_tokens: target, end_unix_s: at }, tokens, now) {
  if (!target) return ["\u2013", "it goes on"];
  if (tokens >= target) return ["reached", ""];
  return at === null ? ["\u2013", "not known yet"] : [day(at), `in ${duration(at - now)}, at this rate`];
}

// One line that begins at 0; moments of which the value is not known are left out.
export function drawLine(root, moments, valueOf, what) {
  const known = moments.filter((each) => valueOf(each) > 0);
  if (known.length < 2) {
    root.replaceChildren(element("p", { class: "empty" }, "The line begins in some seconds."));
    return;
  }
  const [begin, last] = [known[0].unix_s, known.at(-1).unix_s];
  const levels = niceLevels(0, Math.max(...known.map(valueOf)), 4);
  const right = WIDTH - EDGE.right;
  const bottom = HEIGHT - EDGE.bottom;
  const x = (at) => EDGE.left + ((at - begin) / (last - begin || 1)) * (right - EDGE.left);
  const y = (value) => bottom - (value / levels.at(-1)) * (bottom - EDGE.top);
  const parts = known.map((each, place) =>
    `${place ? "L" : "M"}${x(each.unix_s).toFixed(1)} ${y(valueOf(each)).toFixed(1)}`);
  const label = `Line chart: ${what} from ${compact(valueOf(known[0]))} to ${compact(valueOf(known.at(-1)))}.`;
  root.replaceChildren(
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
      ...levels.flatMap((level) => [
        svg("line", { class: "grid", x1: EDGE.left, x2: right, y1: y(level), y2: y(level) }),
        svg("text", { x: EDGE.left - 8, y: y(level) + 4, "text-anchor": "end" }, compact(level)),
      ]),
      svg("text", { x: EDGE.left, y: HEIGHT - 6 }, clock(begin)),
      svg("text", { x: right, y: HEIGHT - 6, "text-anchor": "end" }, clock(last)),
      svg("path", { class: "curve curve-swarm", d: parts.join("") }),
    ),
  );
}

function draw() {
  drawLine(byId("members"), samples, (each) => each.members, "members");
  drawLine(byId("tokens"), samples, (each) => each.tokens, "tokens");
}

function connect() {
  const source = new EventSource("/events");
  const on = (name, show) => source.addEventListener(name, (event) => show(JSON.parse(event.data)));
  on("history", (history) => {
    samples = history.samples;
    draw();
  });
  on("sample", (sample) => {
    samples.push(sample);
    draw();
  });
  on("overview", (overview) => {
    setLink("live", "live");
    showOutlook(overview);
  });
  source.onerror = () => {
    setLink("lost", "no answer from the node");
    // A refusal closes the stream for good: the node may have been busy, or another one.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  };
  addEventListener("pagehide", () => source.close());
}

function setLink(state, text) {
  byId("link-state").dataset.state = state;
  setText(byId("link-state"), text);
}

connect();
