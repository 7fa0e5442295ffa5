// The swarm: this node, its connections by their path, and which nodes exchange.

import { element, setText, svg } from "./dom.js";
import { nameOf, pathName, stateOf, tone } from "./format.js";

const WIDTH = { min: 290, max: 520 };
const HEIGHT_SHARE = 0.78;
const SHOWN_MAX = 96; // more are a cloud; the table has them
const LABELLED_MAX = 18;
const RING_MAX = 24; // beyond, this node goes to the middle, and nodes without a connection outside
const PATHS = ["direct", "punched-tcp", "rtc", "relay"];
const GONE = ["dead", "left"];

export class SwarmMap {
  constructor({ root, count, legend }) {
    this.root = root;
    this.count = count;
    legend.append(
      ...PATHS.map((path) => keyOf(path, pathName(path))),
      element("span", {}, sample(svg("line", { class: "meet", x1: 1, x2: 23, y1: 6, y2: 6 })), "exchanged lately"),
    );
    this.drawn = "";
    this.overview = null;
    new ResizeObserver(() => this.overview && this.update(this.overview)).observe(root);
  }

  update(overview) {
    const present = overview.members.filter((each) => each.is_self || !GONE.includes(each.alive));
    setText(
      this.count,
      `${overview.members_alive} here` +
        (present.length > SHOWN_MAX ? `, ${SHOWN_MAX} drawn` : ""),
    );
    const shown = present.slice(0, SHOWN_MAX);
    const width = Math.min(WIDTH.max, Math.max(WIDTH.min, this.root.clientWidth));
    const size = { width, height: Math.round(width * HEIGHT_SHARE) };
    const parts = shown.map((each) => [each.peer, each.path, each.state, each.alive]);
    const state = JSON.stringify([size, parts, overview.edges]);
    this.overview = overview;
    if (state === this.drawn) return;
    this.drawn = state;
    this.draw(shown, overview, size);
  }

  draw(shown, overview, size) {
    const places = layout(shown, size);
    const placeOf = (index) => places.get(overview.members[index]?.peer);
    const meetings = overview.edges.map((edge) => meeting(placeOf(edge.one), placeOf(edge.other), edge));
    const centre = places.get(shown[0].peer);
    const ways = shown.filter((each) => each.path !== "").map((each) => way(centre, places.get(each.peer), each));
    const spots = shown.map((each) => spot(places.get(each.peer), each, shown.length, size));
    const box = {
      viewBox: `0 0 ${size.width} ${size.height}`,
      role: "img",
      "aria-label": summary(shown),
    };
    this.root.replaceChildren(
      svg("svg", box, ...meetings.filter((line) => line !== null), ...ways, ...spots.reverse()),
    );
  }
}

export function keyOf(path, text) {
  return element("span", {}, sample(svg("line", { class: "way", "data-path": path, x1: 2, x2: 30, y1: 6, y2: 6 }), 32), text);
}

function sample(line, width = 24) {
  return svg("svg", { class: "way-key", width, height: 12, "aria-hidden": true }, line);
}

// On a ring no line between two members hides behind a third. Members are in the order of their
// names, so that the picture stays while their numbers change; this node is at the top.
function layout(members, size) {
  const [own, ...others] = members;
  const places = new Map();
  const middle = { x: size.width / 2, y: size.height / 2 };
  const reach = { x: size.width / 2 - 46, y: size.height / 2 - 34 };
  const sorted = [...others].sort((one, other) => (one.name < other.name ? -1 : 1));
  if (members.length <= RING_MAX) {
    ring([own, ...sorted], 1, { places, middle, reach });
    return places;
  }
  places.set(own.peer, middle);
  ring(sorted.filter((each) => each.path !== ""), 0.6, { places, middle, reach });
  ring(sorted.filter((each) => each.path === ""), 1.08, { places, middle, reach });
  return places;
}

function ring(members, share, { places, middle, reach }) {
  members.forEach((member, place) => {
    const angle = (place / members.length) * 2 * Math.PI - Math.PI / 2;
    places.set(member.peer, {
      x: middle.x + Math.cos(angle) * share * reach.x,
      y: middle.y + Math.sin(angle) * share * reach.y,
    });
  });
}

function meeting(from, to, edge) {
  if (from === undefined || to === undefined) return null;
  // Between 1 and 3 pixels, by how often, on a logarithmic scale.
  const width = Math.min(3, 1 + Math.log10(1 + edge.per_hour) / 2);
  const ends = { x1: from.x, y1: from.y, x2: to.x, y2: to.y };
  const line = svg("line", { class: "meet", ...ends, "stroke-width": width.toFixed(2), opacity: 0.45 });
  line.append(svg("title", {}, `${Math.round(edge.per_hour)} exchanges an hour`));
  return line;
}

function way(from, to, member) {
  const ends = { x1: from.x, y1: from.y, x2: to.x, y2: to.y };
  const line = svg("line", { class: "way", "data-path": member.path, ...ends });
  line.append(svg("title", {}, `${nameOf(member)}: ${pathName(member.path)}`));
  return line;
}

function spot(at, member, n, size) {
  const radius = member.is_self ? 15 : n > 40 ? 6 : n > LABELLED_MAX ? 8 : 11;
  const state = member.alive === "suspect" ? "suspect" : member.state;
  const circle = svg("circle", {
    class: member.is_self ? "spot spot-self" : "spot",
    "data-tone": tone(state),
    cx: at.x,
    cy: at.y,
    r: radius,
  });
  circle.append(svg("title", {}, `${nameOf(member)}, ${stateOf(member)}`));
  const group = svg("g", { "data-member": member.name }, circle);
  if (member.is_self || n <= LABELLED_MAX) {
    // Lines go inwards from a ring: names stand on its outer side.
    const y = at.y < size.height / 2 - 1 ? at.y - radius - 8 : at.y + radius + 17;
    const text = { class: member.is_self ? "label label-self" : "label", x: at.x, y };
    group.append(svg("text", { ...text, "text-anchor": "middle" }, member.is_self ? "this node" : member.name));
  }
  return group;
}

function summary(members) {
  const paths = PATHS.map((path) => [path, members.filter((each) => each.path === path).length])
    .filter(([, n]) => n > 0)
    .map(([path, n]) => `${n} ${pathName(path)}`);
  return `Map of ${members.length} members. Connections of this node: ${paths.join(", ") || "none"}.`;
}
