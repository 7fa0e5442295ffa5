// Numbers and words as a person reads them.

const NONE = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

// What a member is called, with the letters of its id: two may be called the same.
export function nameOf(member) {
  return member.node_name ? `${member.node_name} ${member.name}` : member.name;
}

export function count(value) {
  return value === null ? NONE : whole.format(value);
}

export function compact(value) {
  return value === null ? NONE : value < 10000 ? whole.format(value) : short.format(value);
}

export function loss(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 10000) ? value.toExponential(2) : value.toFixed(4);
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  return `${place === 0 || value >= 100 ? whole.format(value) : value.toFixed(1)} ${units[place]}`;
}

export function weight(value) {
  return value === null || value === undefined ? NONE : value.toFixed(2);
}

export function milliseconds(seconds) {
  if (seconds === null) return NONE;
  const value = seconds * 1000;
  return `${value < 10 ? value.toFixed(1) : whole.format(value)} ms`;
}

export function duration(seconds) {
  const all = Math.max(0, Math.floor(seconds));
  const days = Math.floor(all / 86400);
  const hours = Math.floor(all / 3600) % 24;
  const minutes = Math.floor(all / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${all % 60} s` : `${all} s`;
}

export function clock(unixSeconds) {
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  return new Date(unixSeconds * 1000).toLocaleTimeString("en", options);
}

export function day(unixSeconds) {
  const options = { weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Date(unixSeconds * 1000).toLocaleString("en", options);
}

export function percent(share) {
  return `${(share * 100).toFixed(share >= 0.0995 || share === 0 ? 0 : 1)} %`;
}

const TONES = {
  training: "good",
  serving: "good",
  paused: "warn",
  stopped: "warn",
  starting: "calm",
  syncing: "calm",
  left: "bad",
  dead: "bad",
  failed: "bad",
};

export function tone(state) {
  return TONES[state] ?? "calm";
}

// A member that does not answer is not in the state that it last spoke of.
export function stateOf(member) {
  return member.alive === "suspect" ? `${member.state}?` : member.state;
}

const PATHS = {
  direct: "direct",
  "punched-tcp": "punched",
  rtc: "WebRTC",
  relay: "relayed",
  other: "other",
};

export function pathName(path) {
  return PATHS[path] ?? "no connection";
}
