// What all views share: the connection to the gateway, its state, and how figures are written.
import {html, useEffect, useLayoutEffect, useReducer, useRef, useState} from "./preact.js";

const KEY = "ctxgate.key";
const KEPT = 1000; // finished requests
const RETRIES = [1000, 2000, 5000]; // milliseconds

export const state = {
  connection: "connecting", // connecting, live, lost, key, refused
  since: Date.now(), // when the connection came to be so
  reason: "", // why it was refused
  status: null, // of /-/status
  bodies: false, // whether config.yaml has every request recorded
  requests: [], // finished ones, newest first
  running: [],
  samples: new Map(), // of answers that were written while the page looked: key → [seconds, tokens] of each look
};

const watchers = new Set();
export const changed = () => watchers.forEach((watcher) => watcher());

export function useGateway() {
  const [, tick] = useReducer((count) => count + 1, 0);
  // Before the browser paints: what changes between a first look and the effects after it would be missed.
  useLayoutEffect(() => {
    watchers.add(tick);
    return () => watchers.delete(tick);
  }, []);
  return state;
}

// Requests

export class Refused extends Error {
  constructor(status, error) {
    super(error.message || "HTTP " + status);
    this.status = status;
    this.code = error.code || "";
  }
}

const headers = (more) => {
  const key = sessionStorage.getItem(KEY);
  return {...(key ? {authorization: "Bearer " + key} : {}), ...more};
};

// The response. Throws Refused, or a TypeError if the gateway can't be reached.
export async function ask(path, {json, form, method, signal, more} = {}) {
  const answer = await fetch(path, {
    method: method || (json === undefined && !form ? "GET" : "POST"),
    headers: headers({...(json === undefined ? {} : {"content-type": "application/json"}), ...more}),
    body: json === undefined ? form : JSON.stringify(json),
    signal,
  });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const error = typeof body.error === "object" && body.error ? body.error : body;
  if (answer.status === 401) needKey();
  throw new Refused(answer.status, error);
}

export const get = async (path, signal) => (await ask(path, {signal})).json();

// Server-sent events: {id, event, data} for each.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    rest += part.value;
    const found = rest.split("\n\n");
    rest = found.pop();
    for (const block of found) {
      const event = {event: "message", data: ""};
      for (const line of block.split("\n")) {
        const at = line.indexOf(": ");
        if (at > 0) event[line.slice(0, at)] = line.slice(at + 2);
      }
      if (event.data) yield event;
    }
  }
}

// The key: asked for once a request was refused without one, kept until the tab closes.

let wakeKey = () => {};
export function needKey() {
  become("key", sessionStorage.getItem(KEY) ? "The gateway doesn't know the key that you gave." : "");
}
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  become("connecting");
  wakeKey();
}

// Whether the page has been given a key.
export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

// The stream of events

function become(connection, reason = "") {
  if (state.connection !== connection) state.since = Date.now();
  state.connection = connection;
  state.reason = reason;
  changed();
}

const takes = {
  snapshot(data) {
    const {at, status, requests, running, continued, bodies} = data;
    const known = continued ? new Set(requests.map((entry) => entry.id)) : new Set();
    const before = continued ? state.requests.filter((entry) => !known.has(entry.id)) : [];
    Object.assign(state, {status, running, bodies, requests: [...requests, ...before].slice(0, KEPT)});
    state.skew = at - Date.now() / 1000;
  },
  status(data) { state.status = data; },
  running(data) {
    state.running = data;
    for (const {key, seconds: at, chunks} of data) if (chunks) sample(key, at, chunks);
  },
  ended(entry) {
    if (!state.requests.length || state.requests[0].id < entry.id) {
      state.requests = [entry, ...state.requests].slice(0, KEPT);
    }
    state.running = state.running.filter((one) => one.key !== entry.key);
  },
};

const SAMPLES = 48; // of an answer
const SAMPLED = 300; // answers

function sample(key, at, chunks) {
  const known = state.samples.get(key) || [];
  state.samples.set(key, known);
  // Of a long answer, looks as far apart as those that were kept.
  if (known.length > 2 && at - known[known.length - 1][0] < 0.9 * (known[2][0] - known[1][0])) return;
  known.push([at, chunks]);
  if (known.length > SAMPLES) state.samples.set(key, known.filter((_, place) => place % 2 === 0));
  if (state.samples.size > SAMPLED) state.samples.delete(state.samples.keys().next().value);
}

const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const shown = () => new Promise((done) => {
  const look = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", look);
    done();
  };
  document.addEventListener("visibilitychange", look);
  look();
});

// Follows the gateway for as long as the tab is shown; never returns.
export async function follow() {
  let last = "", failures = 0;
  for (;;) {
    await shown();
    const ends = new AbortController();
    const hide = () => document.hidden && ends.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const answer = await ask("/-/events?follow=true", {signal: ends.signal, more: last ? {"last-event-id": last} : {}});
      for await (const {event, data, id} of events(answer)) {
        failures = 0;
        last = id || last;
        if (takes[event]) takes[event](JSON.parse(data));
        if (state.connection !== "live") become("live");
        else changed();
      }
    } catch (error) {
      if (error instanceof Refused && error.status !== 503 && error.status !== 429) {
        if (error.status !== 401) become("refused", error.message);
        await new Promise((done) => { wakeKey = done; });
        continue;
      }
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    if (document.hidden) continue;
    become("lost");
    await sleep(RETRIES[Math.min(failures++, RETRIES.length - 1)]);
  }
}

// The fragment: #/view?name=value

export function place() {
  const [path, query] = (location.hash.slice(1) || "/live").split("?");
  return {view: path.slice(1) || "live", query: Object.fromEntries(new URLSearchParams(query || ""))};
}

export function href(view, query = {}) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/${view}${text ? "?" + text : ""}`;
}

export const go = (view, query) => { location.hash = href(view, query).slice(1); };

export function usePlace() {
  const [, tick] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    addEventListener("hashchange", tick);
    return () => removeEventListener("hashchange", tick);
  }, []);
  return place();
}

// What a request for JSON came to: {value, error}; asked again when `path` changes, and every `seconds`.
export function useAnswer(path, seconds = 0) {
  const [found, set] = useState({});
  useEffect(() => {
    if (!path) return undefined;
    let timer, over = false;
    const ends = new AbortController();
    const look = async () => {
      try {
        const value = await get(path, ends.signal);
        if (!over) set({value, path});
      } catch (error) {
        if (!over) set((before) => ({...(before.path === path ? before : {}), error, path}));
      }
      if (seconds && !over) timer = setTimeout(look, seconds * 1000);
    };
    look();
    return () => { over = true; clearTimeout(timer); ends.abort(); };
  }, [path, seconds]);
  return found.path === path ? found : {};
}

// Calls handle(key, event) for keys outside of fields; if it returns true, the key is used up.
export function useKeyboard(handle) {
  const latest = useRef(handle);
  latest.current = handle;
  // Not useEffect: that runs after the paint, and what a fast hand presses meanwhile would be lost.
  useLayoutEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, textarea, select, dialog")) return;
      if (latest.current(event.key, event)) event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

// A module's default component; the module is loaded when it is first shown.
const modules = {};
export function Lazy({from, ...props}) {
  const [, tick] = useReducer((count) => count + 1, 0);
  const [error, fail] = useState(null);
  useEffect(() => {
    if (!modules[from]) import(from).then((module) => { modules[from] = module.default; tick(); }, fail);
  }, [from]);
  const Found = modules[from];
  if (error) return html`<p class="problem">This view can't be loaded: ${error.message}</p>`;
  return Found ? html`<${Found} ...${props} />` : html`<p class="soft late">Loading …</p>`;
}

// Figures

export const seconds = (value) =>
  value === null || value === undefined ? "" :
  value < 0.0995 ? `${Math.round(value * 1000)} ms` :
  value < 1 ? `${value.toFixed(2)} s` :
  value < 10 ? `${value.toFixed(1)} s` :
  value < 120 ? `${Math.round(value)} s` :
  value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;

// value in seconds, until now
export const ago = (at) => {
  const passed = Math.max(0, Date.now() / 1000 - at);
  return passed < 60 ? "just now" : passed < 86400 ? `${seconds(passed)} ago` : `on ${new Date(at * 1000).toLocaleDateString("en-GB")}`;
};

export const bytes = (value) =>
  !value ? "–" : value < 1e6 ? `${Math.max(1, Math.round(value / 1e3))} kB` :
  value < 1e9 ? `${Math.round(value / 1e6)} MB` : `${(value / 1e9).toFixed(1)} GB`;

export const count = (value) => (value || 0).toLocaleString("en").replaceAll(",", "\u202f");
export const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
export const rate = (tokens, time) => (tokens > 0 && time > 0 ? tokens / time : 0);
export const speed = (value) => (!value ? "–" : value < 10 ? value.toFixed(1) : count(Math.round(value)));
export const failed = (entry) => entry.outcome !== "ok" && entry.outcome !== "client_left";

export function Copy({text, label = "Copy"}) {
  const [done, set] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without https the clipboard is closed to pages on other hosts than this machine.
      const area = Object.assign(document.createElement("textarea"), {value: text});
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<button class="small" onClick=${copy}>${done ? "Copied" : label}</button>`;
}

// heads: [text, class, title] of each column.
export const Table = ({label, heads = [], children}) => html`
  <div class="scrolls" tabindex="0" role="region" aria-label=${label}><table>
    ${heads.length > 0 && html`<thead><tr>${heads.map(([text, kind, title]) => html`
      <th scope="col" class=${kind} title=${title}>${text}</th>`)}</tr></thead>`}
    <tbody>${children}</tbody></table></div>`;

export const Facts = ({rows}) => html`<dl class="facts">${rows.filter(([, value]) => value || value === 0)
  .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export const Code = ({text}) => html`<div class="code"><code>${text}</code><${Copy} text=${text} /></div>`;

export const Problem = ({error}) => html`<p class="problem" role="alert">
  <strong>${error.status ? `${error.status} ${error.code}` : "The gateway can't be reached"}</strong>
  ${" "}${error.status ? error.message : "Is it still running?"}
</p>`;
