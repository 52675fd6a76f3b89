// Live: the requests in flight and the last ones that ended, newest first; one of them is opened by `detail.js`.
import {html, useMemo, useRef, useState} from "./preact.js";
import {Code, Lazy, Table, clock, count, failed, go, href, many, rate, seconds, speed, useGateway, useKeyboard} from "./base.js";

const MINUTES = 10, BIN = 5, BINS = (MINUTES * 60) / BIN; // of the chart; BIN in seconds
const APIS = {chat: "OpenAI chat", responses: "OpenAI responses", messages: "Anthropic messages", ollama: "Ollama",
  completions: "OpenAI completions", embeddings: "embeddings", rerank: "rerank", rooms: "room", ctx: "/ctx"};
export const apiName = (api) => APIS[api] || api;

// Tokens a second in each bin of the last ten minutes, and the bins with failures.
function history(requests, running, now) {
  const tokens = new Array(BINS).fill(0), failures = new Array(BINS).fill(0);
  const bin = (at) => Math.floor((at - (now - MINUTES * 60)) / BIN);
  const spread = (from, to, amount) => {
    const first = Math.max(0, bin(from)), last = Math.min(BINS - 1, bin(to));
    const share = amount / (bin(to) - bin(from) + 1);
    for (let at = first; at <= last; at++) tokens[at] += share / BIN;
  };
  for (const entry of requests) {
    if (entry.at < now - MINUTES * 60) break;
    const written = entry.seconds - (entry.first_seconds || 0);
    if (entry.completion_tokens) spread(entry.at - written, entry.at, entry.completion_tokens);
    if (failed(entry) && bin(entry.at) >= 0) failures[Math.min(BINS - 1, bin(entry.at))]++;
  }
  for (const one of running) {
    if (one.chunks) spread(now - one.seconds + (one.first_seconds || 0), now, one.chunks);
  }
  return {tokens, failures};
}

function Chart({tokens, failures}) {
  const most = Math.max(...tokens, 1), height = 44;
  const bars = tokens.map((value, at) => value > 0 && html`
    <rect x=${at * 4} width="3" y=${height - Math.max(1.5, (value / most) * height)}
      height=${Math.max(1.5, (value / most) * height)} />`);
  const marks = failures.map((value, at) => value > 0 && html`<rect x=${at * 4} width="3" y=${height + 3} height="6" />`);
  const total = failures.reduce((sum, value) => sum + value, 0);
  return html`<figure class="chart">
    <svg viewBox="0 0 ${BINS * 4} ${height + 10}" preserveAspectRatio="none" role="img" aria-label=${
      `Tokens per second in the last ${MINUTES} minutes, at most ${speed(most)}; ${many(total, "failure")}`}>
      <line x1="0" x2=${BINS * 4} y1=${height} y2=${height} />${bars}<g class="failures">${marks}</g>
    </svg>
    <figcaption><span>−${MINUTES} min</span><span>at most ${speed(most)} tokens/s${total > 0 &&
      html` · <b class="bad">▪</b> ${many(total, "failure")}`}</span><span>now</span></figcaption>
  </figure>`;
}

const Tile = ({name, value, note, bad}) => html`<div class="tile ${bad ? "bad" : ""}">
  <span class="soft">${name}</span><strong>${value}</strong>${note && html`<span class="soft">${note}</span>`}
</div>`;

function Figures({gateway}) {
  const {requests, running} = gateway;
  const now = Date.now() / 1000 + (gateway.skew || 0);
  const {tokens, failures} = history(requests, running, now);
  const writing = running.filter((one) => one.state === "writes");
  const current = writing.reduce((sum, one) => sum + rate(one.chunks, one.seconds - (one.first_seconds || 0)), 0);
  const waiting = running.filter((one) => one.state === "waits").length;
  const bad = requests.filter(failed).length;
  return html`<section class="figures" aria-label="Figures">
    <${Tile} name="tokens/s now" value=${speed(current)} />
    <${Tile} name="in flight" value=${running.reduce((sum, one) => sum + (one.count || 1), 0)}
      note=${waiting > 0 && `${waiting} waiting`} />
    <${Tile} name="failed" value=${bad} note=${`of the last ${requests.length}`} bad=${bad > 0} />
    <${Chart} tokens=${tokens} failures=${failures} />
  </section>`;
}

const WAITS = {memory: "for memory", drain: "for the engine to finish its answers", place: "for a free slot",
  load: "until the engine is loaded", slot: "for a free slot", prefix: "until what it shares is read", "back-off": "for the engine to start again"};
// What requests wait for. holders: the models that hold the memory.
export const waitsFor = (what, holders) => (WAITS[what] || `for the engine (${what})`) + (holders.length > 0
  ? `, which ${holders.join(" and ")} ${holders.length > 1 ? "hold" : "holds"}` : "");

// What a request in flight does, to go after its state.
export function doing(one) {
  if (one.state === "sent") return `${many(one.count, "request")} that the engine has not begun`;
  if (one.state === "writes") return `the answer, ${many(one.chunks, "token")}`;
  const [, aside, told] = /^(put-aside ?)?(.*)/.exec(one.progress || "");
  return progress(one, told) + (aside ? ", put aside" : "");
}

function progress(one, told) {
  const [word, ...pairs] = told.split(" ");
  const values = Object.fromEntries(pairs.map((pair) => pair.split("=")));
  if (word === "loading") return `until the engine is loaded${values.percent ? `, ${values.percent} %` : ""}`;
  if (word === "queued") {
    if (values.reads) return `${waitsFor(values.for, [])}, reads ${many(+values.reads, "token")}, ${values.left} s left`;
    const holders = values["held-by"] ? values["held-by"].split(",") : [];
    return `${waitsFor(values.for, holders)}, ${values.position} of ${values.waiting} in line`;
  }
  if (one.state === "waits") return "for the engine";
  if (word === "reading") return `the prompt, ${count(+values.processed)} of ${many(+values.total, "token")}`;
  if (word === "asking-again") return `again, attempt ${values.attempt}: the answer did not conform`;
  if (word === "calling") return `a call, ${values.characters} characters`;
  return "the prompt";
}

// The kinds of a text such as "unmarked, lexical".
export const kinds = (mended) => (mended || "").split(", ");
const REPAIRS = {unmarked: "marks of a call", lexical: "spelling of a call", schema: "types of a call"};
export const UNREAD = "unread_call"; // the warning of an answer that looks like a call which nobody read
export const unread = (entry) => entry.outcome === "ok" && (entry.warnings || []).includes(UNREAD);
const repairs = (entry) => [
  ...kinds(entry.mended).filter((kind) => REPAIRS[kind]).map((kind) => REPAIRS[kind]),
  ...Object.keys(entry.healed).map((kind) => kind === "repeated_calls" ? "a repeated call"
    : `${kind.replaceAll("_", " ")} in the history`),
  ...entry.warnings.filter((code) => code !== UNREAD).map((code) => code.replaceAll("_", " ")),
];

export const Outcome = ({entry}) =>
  unread(entry) ? html`<span class="badge unread">call in text</span>`
  : entry.outcome === "ok" ? html`<span class="badge good">ok</span>`
  : entry.outcome === "client_left" ? html`<span class="badge">client left</span>`
  : html`<span class="badge bad">failed${entry.error ? ` ${entry.error.status}` : ""}</span>`;

const SPARK = [72, 18]; // pixels
const at = (value) => Math.round(value * 10) / 10;

// The answer's course: a line while the model reads, then how fast it writes, against its model's fastest.
function Spark({one, samples, fastest}) {
  const [width, height] = SPARK, total = one.seconds || 0, first = one.first_seconds || 0;
  const tokens = one.completion_tokens || one.chunks || 0;
  const unknown = !tokens && one.first_seconds; // its engine counts none
  if (!total) return html`<svg class="spark" aria-hidden="true" viewBox="0 0 ${width} ${height}" />`;
  const x = (seconds) => at(Math.min(1, seconds / total) * width);
  const y = (speed) => at(height - 1 - Math.min(1, speed / (fastest || speed)) * (height - 3));
  // Looks come four times a second: a short answer has too few to say more than its mean.
  const seen = (samples || []).filter(([seconds]) => seconds >= first);
  const steps = seen.slice(1).map(([seconds, chunks], place) => {
    const [before, had] = seen[place];
    return [before, seconds, rate(chunks - had, seconds - before)];
  });
  const parts = steps.length > 2 ? [[first, steps[0][0], steps[0][2]], ...steps, [steps[steps.length - 1][1], total, steps[steps.length - 1][2]]]
    : tokens ? [[first, total, rate(tokens, total - first)]] : unknown ? [[first, total, (fastest || 3) / 3]] : [];
  const path = parts.map(([from, to, speed]) => `L${x(from)} ${y(speed)}L${x(to)} ${y(speed)}`).join("");
  return html`<svg class="spark" aria-hidden="true" viewBox="0 0 ${width} ${height}">
    <line x1="0" x2=${path ? x(first) : width} y1=${height - 1} y2=${height - 1} />
    ${path && html`<path d=${`M${x(first)} ${height - 1}${path}L${width} ${height - 1}Z`} />`}</svg>`;
}

// The fastest answer of each model; a few tokens at once would say nothing of the others.
function peaks(requests) {
  const found = {};
  for (const {model, completion_tokens: tokens, seconds, first_seconds: first} of requests) {
    if (tokens >= 8 && first) found[model] = Math.max(found[model] || 0, rate(tokens, seconds - first));
  }
  return found;
}

const SIGNS = {text: "¶", call: "ƒ", unread: "?", left: "←", failed: "!"};
const kindOf = (entry) => failed(entry) ? "failed" : unread(entry) ? "unread" : entry.outcome !== "ok" ? "left" : entry.called ? "call" : "text";

// What the answer is: words, a call, an error.
function Sign({entry}) {
  const kind = kindOf(entry);
  return html`<span class="sign" data-kind=${kind} aria-hidden="true">${SIGNS[kind]}</span>
    ${kind === "text" || kind === "call" ? html`<span class="soft">${kind}</span>` : html`<${Outcome} entry=${entry} />`}`;
}

function Running({one, query, samples, fastest}) {
  return html`<tr class="running">
    <td>${one.key.includes(" ") ? "" : html`<a href=${href("live", {...query, id: one.key})}>now</a>`}</td>
    <td class="wide"></td><td>${one.model}</td><td class="wide">${one.api ? apiName(one.api) : ""}</td>
    <td class="wide client">${one.client}</td>
    <td class="state"><div class="course"><${Spark} one=${one} samples=${samples} fastest=${fastest} />
      <span class="badge busy">${one.state}</span><span class="words">${doing(one)}</span></div></td>
    <td class="number">${seconds(one.first_seconds)}</td><td class="number">${seconds(one.seconds)}</td>
    <td class="number">${one.chunks ? count(one.chunks) : ""}</td>
  </tr>`;
}

function Row({entry, query, chosen, samples, fastest}) {
  const link = href("live", {...query, id: entry.id}), mended = repairs(entry);
  const open = (event) => { if (!event.target.closest("a")) location.hash = link.slice(1); };
  return html`<tr onClick=${open} class="request ${chosen ? "chosen" : ""}">
    <td><a href=${link} aria-label=${`Request ${entry.id}`}>${entry.id}</a></td><td class="wide">${clock(entry.at)}</td>
    <td>${entry.model || html`<span class="soft">none</span>`}</td><td class="wide">${apiName(entry.api)}</td>
    <td class="wide client" title=${entry.client}>${entry.client}</td>
    <td class="state"><div class="course"><${Spark} one=${entry} samples=${samples} fastest=${fastest} />
      <${Sign} entry=${entry} />${entry.error &&
      html`<span class="words bad" title=${entry.error.message}>${entry.error.message}</span>`}
      ${mended.length > 0 && html`<span class="words mended">repaired: ${mended.join(", ")}</span>`}</div></td>
    <td class="number">${seconds(entry.first_seconds)}</td><td class="number">${seconds(entry.seconds || null)}</td>
    <td class="number">${entry.prompt_tokens || entry.completion_tokens
      ? `${count(entry.prompt_tokens)} + ${count(entry.completion_tokens)}` : ""}</td>
  </tr>`;
}

function Empty() {
  const base = `${location.origin}/v1`;
  const line = `curl ${base}/chat/completions -H 'content-type: application/json' -d ` +
    `'{"messages": [{"role": "user", "content": "Hello"}]}'`;
  return html`<section class="empty">
    <h2>No request yet</h2>
    <p>Point a program at this base URL; its requests appear here.</p>
    <${Code} text=${base} />
    <p>Or try it in a terminal:</p>
    <${Code} text=${line} />
    <p>Or here, in the <a href="#/playground">Playground</a>. <a href="#/connect">Connect</a> has the lines for each known
      program.</p>
  </section>`;
}

const OUTCOMES = [["", "all outcomes"], ["failed", "failed"], ["ok", "ok"], ["client_left", "client left"],
  ["unread", "call in text"], ["repaired", "repaired"]];

function matches(entry, {q, outcome, model}) {
  const found = !outcome || (outcome === "failed" ? failed(entry)
    : outcome === "unread" ? unread(entry)
    : outcome === "repaired" ? repairs(entry).length > 0 : entry.outcome === outcome && !unread(entry));
  if (!found || (model && entry.model !== model)) return false;
  const text = [entry.model, apiName(entry.api), entry.client, entry.error && entry.error.code,
    entry.error && entry.error.message].join(" ").toLowerCase();
  return !q || text.includes(q.toLowerCase());
}

const HEADS = [["ID"], ["Time", "wide"], ["Model"], ["API", "wide"], ["Program", "wide"],
  ["Answer", "", "Its course, against its model's fastest, and what it is"],
  ["First", "number", "Time to the first token"], ["Total", "number"],
  ["Tokens", "number", "Tokens of the prompt + of the answer"]];

function List({gateway, query}) {
  const [paused, pause] = useState(null);
  const [chosen, choose] = useState(null);
  const filter = useRef(null);
  const {q, outcome, model} = query;
  const requests = paused || gateway.requests;
  const rows = useMemo(() => requests.filter((entry) => matches(entry, query)), [requests, q, outcome, model]);
  const fresh = paused ? gateway.requests.filter((entry) => !paused.length || entry.id > paused[0].id).length : 0;
  const set = (more) => go("live", {...query, ...more});
  useKeyboard((key, event) => {
    const at = rows.findIndex((entry) => entry.id === chosen);
    const next = rows[Math.max(0, Math.min(rows.length - 1, at + (key === "j" ? 1 : -1)))];
    if ((key === "j" || key === "k") && next) {
      choose(next.id);
      if (!paused) pause(gateway.requests);
    } else if (key === "Enter" && at >= 0 && !event.target.closest("a, button")) set({id: chosen});
    else if (key === "Escape") { choose(null); pause(null); }
    else if (key === "p") pause(paused ? null : gateway.requests);
    else if (key === "/") filter.current.focus();
    else return false;
    return true;
  });
  const models = [...new Set(requests.map((entry) => entry.model))].filter(Boolean).sort();
  const fastest = useMemo(() => peaks(rows), [rows]);
  const {samples} = gateway;
  const running = paused ? [] : gateway.running.filter((one) => !model || one.model === model);
  return html`
    <div class="bar filters">
      <input type="search" ref=${filter} placeholder="Filter: model, API, program, error" aria-label="Filter"
        value=${q || ""} onInput=${(event) => set({q: event.target.value})} />
      <select aria-label="Model" value=${model || ""} onChange=${(event) => set({model: event.target.value})}>
        <option value="">all models</option>${models.map((name) => html`<option value=${name}>${name}</option>`)}
      </select>
      <select aria-label="Outcome" value=${outcome || ""} onChange=${(event) => set({outcome: event.target.value})}>
        ${OUTCOMES.map(([value, text]) => html`<option value=${value}>${text}</option>`)}
      </select>
      <button aria-pressed=${paused ? "true" : "false"} onClick=${() => pause(paused ? null : gateway.requests)}>
        ${paused ? "Go on" : "Pause"}</button>
      <span role="status">${fresh > 0 ? `${fresh} new` : ""}</span>
    </div>
    <${Table} label="Requests" heads=${HEADS}>
      ${running.map((one) => html`<${Running} one=${one} query=${query} samples=${samples.get(one.key)} fastest=${fastest[one.model]} key=${one.key} />`)}
      ${rows.map((entry) => html`<${Row} entry=${entry} query=${query} samples=${samples.get(entry.key)} fastest=${fastest[entry.model]} key=${entry.id} chosen=${entry.id === chosen} />`)}
      ${!running.length && !rows.length && html`<tr><td colspan="9" class="soft">No request fits the filter.</td></tr>`}
    </${Table}>
    <p class="soft small">The last requests, in memory alone. ¶ words, ƒ a call, ! an error. First: seconds to the first token. Tokens: prompt + answer.
      ${" "}${gateway.bodies ? "config.yaml has every request recorded."
        : html`Their texts aren't recorded: <a href="#/live?id=words">how to see them</a>.`}</p>`;
}

export function Live({query}) {
  const gateway = useGateway();
  if (query.id) return html`<${Lazy} from="./detail.js" query=${query} gateway=${gateway} />`;
  if (!gateway.status) return html`<h1>Live</h1><p class="soft late">Connecting …</p>`;
  return html`<h1>Live</h1><${Figures} gateway=${gateway} />
    ${gateway.requests.length || gateway.running.length
      ? html`<${List} gateway=${gateway} query=${query} />` : html`<${Empty} />`}`;
}
