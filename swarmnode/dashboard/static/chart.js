// Loss over time: the swarm's mean, this node, and thin lines of the other members.

import { element, setText, svg } from "./dom.js";
import { clock, loss } from "./format.js";

const MARGIN = { left: 52, right: 14, top: 10, bottom: 26 };
const RANGES = [
  ["10 min", 600],
  ["1 h", 3600],
  ["All", Infinity],
];
const SCALES = ["linear", "log"];
// Where the largest loss is so many times the smallest, a linear scale shows only the beginning.
const LOG_FROM = 8;
// A gap in time longer than this many usual steps is drawn as one: the machine slept.
const GAP_STEPS = 6;

export class LossChart {
  constructor({ root, readout, ranges, scales, legend }) {
    this.root = root;
    this.readout = readout;
    this.samples = [];
    this.rangeS = Infinity;
    this.cursor = null; // the place of the sample that is read
    this.view = null;
    this.scale = null; // one of SCALES if a person has chosen it
    this.addRanges(ranges);
    this.scaleButtons = this.addScales(scales);
    legend.append(
      key("curve-swarm", "swarm, mean"),
      key("curve-own", "this node"),
      key("curve-peer", "other members"),
    );
    root.addEventListener("pointermove", (event) => this.point(event));
    root.addEventListener("pointerleave", () => this.read(null));
    root.addEventListener("keydown", (event) => this.step(event));
    root.addEventListener("blur", () => this.read(null));
    new ResizeObserver(() => this.draw()).observe(root);
  }

  addRanges(group) {
    for (const [name, seconds] of RANGES) {
      const button = element("button", { type: "button", "aria-pressed": seconds === this.rangeS });
      button.textContent = name;
      button.addEventListener("click", () => {
        this.rangeS = seconds;
        for (const other of group.children) other.setAttribute("aria-pressed", other === button);
        this.read(null);
      });
      group.append(button);
    }
  }

  addScales(group) {
    return SCALES.map((name) => {
      const button = element("button", { type: "button" }, name);
      button.addEventListener("click", () => {
        this.scale = name;
        this.read(null);
      });
      group.append(button);
      return button;
    });
  }

  replace(samples) {
    this.samples = samples;
    this.read(null);
  }

  add(sample) {
    this.samples.push(sample);
    this.draw();
  }

  shown() {
    const newest = this.samples.at(-1);
    if (newest === undefined) return [];
    return this.samples.filter((each) => each.unix_s >= newest.unix_s - this.rangeS);
  }

  draw() {
    const samples = this.shown();
    const width = Math.max(260, this.root.clientWidth);
    const height = Math.round(Math.min(390, Math.max(210, width * 0.56)));
    const values = samples.flatMap((each) => [each.own, each.swarm, ...Object.values(each.peers)]);
    const known = values.filter((value) => value !== null && Number.isFinite(value));
    if (samples.length < 2 || known.length === 0) {
      this.view = null;
      this.root.replaceChildren(
        element("p", { class: "empty" }, "The curve begins with the first losses of the swarm."),
      );
      return;
    }
    const [low, high] = [known.reduce(min), known.reduce(max)];
    const isLog = low > 0 && (this.scale ?? (high > LOG_FROM * low ? "log" : "linear")) === "log";
    this.scaleButtons.forEach((button, place) => {
      button.setAttribute("aria-pressed", isLog === (place === 1));
    });
    this.view = scales(samples, [low, high], isLog, width, height);
    const box = { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(samples) };
    const picture = svg("svg", box, ...this.axes(), ...this.curves(samples));
    this.marks = svg("g");
    picture.append(this.marks);
    this.root.replaceChildren(picture);
    this.mark();
  }

  axes() {
    const { x, y, width, height, times, levels, isLog } = this.view;
    const right = width - MARGIN.right;
    const lines = levels.flatMap((level) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(level), y2: y(level) }),
      svg("text", { x: MARGIN.left - 8, y: y(level) + 4, "text-anchor": "end" }, tick(level, levels, isLog)),
    ]);
    const marks = times.map(([at, text, anchor]) =>
      svg("text", { x: x(at), y: height - 6, "text-anchor": anchor }, text),
    );
    const bottom = height - MARGIN.bottom;
    return [
      ...lines,
      svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
      ...marks,
    ];
  }

  curves(samples) {
    const names = new Set(samples.flatMap((each) => Object.keys(each.peers)));
    const peers = [...names].map((name) => this.curve(samples, (each) => each.peers[name], "peer"));
    return [
      ...peers,
      this.curve(samples, (each) => each.own, "own"),
      this.curve(samples, (each) => each.swarm, "swarm"),
    ];
  }

  curve(samples, valueOf, kind) {
    const { x, y, gapS } = this.view;
    const parts = [];
    let before = null;
    for (const sample of samples) {
      const value = valueOf(sample);
      if (value === null || value === undefined) {
        before = null;
        continue;
      }
      const jump = before === null || sample.unix_s - before > gapS;
      parts.push(`${jump ? "M" : "L"}${x(sample.unix_s).toFixed(1)} ${y(value).toFixed(1)}`);
      before = sample.unix_s;
    }
    return svg("path", { class: `curve curve-${kind}`, d: parts.join("") });
  }

  // --- reading values ----------------------------------------------------------------------

  point(event) {
    const samples = this.shown();
    if (this.view === null || samples.length === 0) return;
    const box = this.root.getBoundingClientRect();
    const left = ((event.clientX - box.left) / box.width) * this.view.width;
    const distances = samples.map((each) => Math.abs(this.view.x(each.unix_s) - left));
    this.read(distances.indexOf(Math.min(...distances)));
  }

  step(event) {
    const last = this.shown().length - 1;
    const now = Math.min(this.cursor ?? last, last);
    const steps = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last };
    if (last < 0 || !(event.key in steps)) return;
    event.preventDefault();
    this.read(Math.max(0, Math.min(last, steps[event.key])));
  }

  read(place) {
    this.cursor = place;
    if (place === null) this.draw();
    else this.mark();
  }

  mark() {
    const sample = this.cursor === null ? undefined : this.shown()[this.cursor];
    if (sample === undefined || this.view === null) {
      setText(this.readout, "");
      this.marks?.replaceChildren();
      return;
    }
    const { x, y, height } = this.view;
    const at = x(sample.unix_s);
    const dots = ["own", "swarm"]
      .filter((kind) => sample[kind] !== null)
      .map((kind) => svg("circle", { class: `dot-${kind}`, cx: at, cy: y(sample[kind]), r: 4 }));
    const line = { class: "cursor", x1: at, x2: at, y1: MARGIN.top, y2: height - MARGIN.bottom };
    this.marks.replaceChildren(svg("line", line), ...dots);
    setText(
      this.readout,
      `${clock(sample.unix_s)}: swarm ${loss(sample.swarm)}, this node ${loss(sample.own)}` +
        ` at step ${sample.step}, ${sample.members} members`,
    );
  }
}

function scales(samples, [least, most], isLog, width, height) {
  const begin = samples[0].unix_s;
  const end = samples.at(-1).unix_s;
  const wanted = height < 250 ? 4 : 6;
  const levels = isLog ? logLevels(least, most, wanted) : niceLevels(least, most, wanted);
  const place = isLog ? Math.log : (value) => value;
  const [low, high] = [levels[0], levels.at(-1)].map(place);
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const x = (at) => MARGIN.left + ((at - begin) / (end - begin || 1)) * (right - MARGIN.left);
  const y = (value) => bottom - ((place(value) - low) / (high - low)) * (bottom - MARGIN.top);
  const middle = (begin + end) / 2;
  const times = [
    [begin, clock(begin), "start"],
    [middle, clock(middle), "middle"],
    [end, clock(end), "end"],
  ];
  const gaps = samples.slice(1).map((each, place) => each.unix_s - samples[place].unix_s);
  const usual = gaps.sort((one, other) => one - other)[Math.floor(gaps.length / 2)];
  return { x, y, width, height, levels, isLog, times, gapS: usual * GAP_STEPS };
}

export function niceLevels(low, high, wanted) {
  if (high - low < Math.abs(high) * 1e-6 + 1e-12) {
    const room = Math.abs(high) * 0.05 || 0.5;
    [low, high] = [low - room, high + room];
  }
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= rough);
  const levels = [];
  for (let at = Math.floor(low / step); at <= Math.ceil(high / step - 1e-9); at += 1) {
    levels.push(at * step);
  }
  return levels;
}

// 1, 2 and 5 times the powers of ten around the values; fewer of each ten where that is enough.
function logLevels(low, high, wanted) {
  const choices = [[1, 2, 5], [1, 3], [1]];
  for (const steps of choices) {
    const levels = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      levels.push(...steps.map((step) => Number((step * 10 ** power).toPrecision(3))));
    }
    const first = Math.max(0, levels.findLastIndex((level) => level <= low));
    const last = levels.findIndex((level) => level >= high);
    const chosen = levels.slice(first, (last < 0 ? levels.length : last) + 1);
    if (chosen.length <= wanted + 2 || steps.length === 1) {
      return chosen.length > 1 ? chosen : niceLevels(low, high, wanted);
    }
  }
}

function tick(value, levels, isLog) {
  if (isLog) return value >= 1e5 || value < 1e-4 ? value.toExponential(0) : String(value);
  const step = levels[1] - levels[0];
  if (Math.abs(levels.at(-1)) >= 1e5 || step < 1e-5) return value.toExponential(1);
  const digits = [0, 1, 2, 3, 4, 5].find((n) => Math.abs(step * 10 ** n - Math.round(step * 10 ** n)) < 1e-6);
  return value.toFixed(digits ?? 5);
}

function min(one, other) {
  return Math.min(one, other);
}

function max(one, other) {
  return Math.max(one, other);
}

function key(kind, text) {
  const line = svg("line", { class: `curve ${kind}`, x1: 1, x2: 23, y1: 5, y2: 5 });
  return element("span", {}, svg("svg", { width: 24, height: 10, "aria-hidden": true }, line), text);
}

function summary(samples) {
  const [first, last] = [samples[0], samples.at(-1)];
  return (
    `Line chart with ${samples.length} points from ${clock(first.unix_s)} to` +
    ` ${clock(last.unix_s)}: mean loss of the swarm from ${loss(first.swarm)} to` +
    ` ${loss(last.swarm)}, of this node from ${loss(first.own)} to ${loss(last.own)}.`
  );
}
