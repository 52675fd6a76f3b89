// One request: what happened, what was asked, what the model wrote and what the client got.
import {html, useEffect, useMemo, useRef, useState} from "./preact.js";
import {Code, Copy, Problem, Table, clock, count, get, go, href, many, rate, seconds, speed, useAnswer, useKeyboard} from "./base.js";
import {Outcome, UNREAD, apiName, doing, kinds, unread} from "./live.js";
import {changes, difference, fold, pretty, words} from "./fold.js";

const LONGEST = 200_000; // characters that a pane shows
const EVERY = 500; // milliseconds between two looks at a request that is still answered

const MENDED = {
  unmarked: "The call had no marks: the model wrote it as plain text. ctxgate read it, since it names a declared tool and its arguments fit.",
  lexical: "The call was misspelt (quotes, brackets or the like). ctxgate corrected the spelling, not the values.",
  schema: "Values of the call had other types than the tool declares, such as \"3\" for a number. ctxgate converted them.",
};
const HEALED = {
  arguments: "arguments of earlier calls that weren't JSON objects",
  ids: "earlier calls or results whose ids were missing or did not fit",
  orphan_results: "results without a call, which became user messages",
};
const REPEATED = "repeated_calls";
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const WARNINGS = {
  truncated_call: "The answer ended inside a call, so the client got no call from it:",
  unknown_tool: "It called a tool that the request does not declare. The client did not get this call:",
  calls_not_allowed: "It called a tool, which the request forbids. The client did not get this call:",
  parallel_call_dropped: "It made more calls at once than the request allows. The client did not get this one:",
  text_after_call: "It went on writing after its call. ctxgate left this out:",
  stray_marker: "A marker of the format stood alone. ctxgate left it out:",
  echo_dropped: "It repeated a part of its prompt. ctxgate left this out:",
};

// The recording, kept up to date while the request is answered.
function useRequest(id, format, over) {
  const [found, set] = useState({});
  useEffect(() => {
    let timer, ended = false;
    const ends = new AbortController();
    let raw = [], clean = [];
    const look = async () => {
      const path = `/-/requests/${encodeURIComponent(id)}?raw=${raw.length}&clean=${clean.length}`;
      try {
        const answer = await get(path, ends.signal);
        const {recording} = answer;
        if (recording) {
          raw = [...raw, ...recording.raw];
          clean = [...clean, ...recording.clean];
          answer.recording = {...recording, raw, clean};
        }
        if (!ended) set({...answer, id});
        if (answer.running && !ended) timer = setTimeout(look, EVERY);
      } catch (error) {
        if (!ended && error.name !== "AbortError") set({error, id});
      }
    };
    look();
    return () => { ended = true; clearTimeout(timer); ends.abort(); };
  }, [id, over]);
  return found.id === id ? found : {};
}

function Step({kind = "", children}) {
  return html`<li class=${kind}>${children}</li>`;
}

// What the gateway did, in the order in which it did it.
function Story({request, recording, asked, raw, clean, running}) {
  const steps = [];
  const tools = recording && Array.isArray(recording.request.tools) ? recording.request.tools.length : 0;
  const who = request.client ? html`<b>${request.client}</b>` : "A program";
  steps.push(html`<${Step}>${who} asked <b>${request.model || "no model"}</b> by the ${apiName(request.api)} API
    ${request.stream ? ", streamed" : ""}${tools > 0 && html`, with ${many(tools, "tool")}`}.</${Step}>`);
  for (const [kind, times] of Object.entries(request.healed || {}).filter(([kind]) => kind !== REPEATED)) {
    steps.push(html`<${Step} kind="mended">ctxgate repaired the conversation's history: ${HEALED[kind] || kind}
      ${" "}(${times}).</${Step}>`);
  }
  if (asked.length) {
    steps.push(html`<${Step}>The engine got the request with ${many(asked.length, "field")} changed: ${asked.map(
      ([name, how], at) => html`${at > 0 && ", "}<code>${name}</code> ${how}`)}.</${Step}>`);
  }
  if (request.prompt_tokens) {
    const cached = request.cached_tokens ? `, of which ${count(request.cached_tokens)} were cached` : "";
    steps.push(html`<${Step}>The model read a prompt of ${many(request.prompt_tokens, "token")}${cached}.</${Step}>`);
  }
  for (const reason of request.prefix || []) {
    steps.push(html`<${Step} kind="mended">It had to read the prompt again: ${reason}</${Step}>`);
  }
  if (request.call_probability != null && request.call_threshold <= 1) {
    const {call_probability: likely, call_threshold: threshold} = request;
    steps.push(html`<${Step}>A call was ${percent(likely)} likely, and the threshold is ${percent(threshold)}, so the
      answer had to be <b>${likely >= threshold ? "a call" : "words"}</b>.
      ${" "}<meter min="0" max="1" low=${threshold} value=${likely} title="how likely a call was"></meter></${Step}>`);
  }
  if ((request.healed || {})[REPEATED]) {
    steps.push(html`<${Step} kind="mended">It made a call again whose result it had just got. ctxgate asked it for words
      instead.</${Step}>`);
  }
  if (request.completion_tokens) {
    const time = request.seconds - (request.first_seconds || 0);
    steps.push(html`<${Step}>It wrote ${many(request.completion_tokens, "token")}${request.stream &&
      html`, ${speed(rate(request.completion_tokens, time))} a second`}.</${Step}>`);
  }
  if (running) steps.push(html`<${Step}>It now ${request.state} ${doing(request)}.</${Step}>`);
  if (recording && recording.raw.length) steps.push(html`<${Reading} raw=${raw} clean=${clean} recording=${recording} />`);
  for (const kind of kinds(request.mended)) {
    if (MENDED[kind]) steps.push(html`<${Step} kind="mended">${MENDED[kind]}</${Step}>`);
  }
  if (unread(request)) {
    steps.push(html`<${Step} kind="mended"><b>It looks like a tool call, but the client got text.</b> ${recording
      ? "See whether another format in “read as” finds the call." : "Record such a request to see the text."}
      ${" "}<code>docs/unread-calls.md</code> lists the causes and their cures.</${Step}>`);
  }
  const told = clean.told && clean.told.warnings ? clean.told.warnings
    : (request.warnings || []).filter((code) => code !== UNREAD).map((code) => ({code}));
  for (const {code, text} of told) {
    steps.push(html`<${Step} kind="mended">${WARNINGS[code] || "A part looked like a call and could not be read as one:"}
      ${" "}${text ? html`<code>${text.slice(0, 300)}</code> (${code})` : html`<code>${code}</code>`}</${Step}>`);
  }
  if (request.outcome === "client_left") {
    steps.push(html`<${Step}>The client closed the connection before the answer was complete; ctxgate told the engine to
      stop.</${Step}>`);
  }
  if (request.error) {
    const {status, code, message, retryable} = request.error;
    steps.push(html`<${Step} kind="bad"><b>It failed: ${status} ${code}.</b> The client was told:
      <blockquote>${message}</blockquote>
      ${retryable ? "The same request may succeed later." : "The same request will fail again: change what it asks, or the configuration."}
      </${Step}>`);
  }
  return html`<ol class="story">${steps}</ol>`;
}

function Reading({raw, clean, recording}) {
  const format = html`<code>${recording.tool_call_format}</code>`;
  const called = clean.calls.length;
  if (called && !raw.calls.length) {
    return html`<${Step} kind="good">ctxgate read the text as ${format}, found ${many(called, "tool call")} and gave
      ${" "}${called > 1 ? "them" : "it"} to the client as OpenAI tool calls.</${Step}>`;
  }
  if (called) return html`<${Step}>The engine had found ${many(called, "tool call")}; ctxgate passed them on.</${Step}>`;
  if (raw.reasoning !== clean.reasoning) {
    return html`<${Step} kind="good">ctxgate read the text as ${format} and parted the model's thinking from the
      answer.</${Step}>`;
  }
  const tools = Array.isArray(recording.request.tools) && recording.request.tools.length > 0;
  return raw.content === clean.content
    ? html`<${Step}>The answer went to the client unchanged${tools && html`: read as ${format}, it holds no tool
      call. If the model wrote one all the same, choose another format in “read as”`}.</${Step}>`
    : html`<${Step} kind="good">ctxgate read the text as ${format} and left out the format's own markers.</${Step}>`;
}

// Where the time went.
function Times({request, recording}) {
  const total = request.seconds;
  if (!total || total < 0.001) return null;
  const began = parseFloat(request.key), accepted = recording && parseFloat(recording.accepted);
  const first = request.first_seconds || 0;
  const waited = accepted ? Math.max(0, Math.min(accepted - began, first || total)) : 0;
  const parts = [["waits", waited], ["reads", first ? first - waited : 0], [first ? "writes" : request.error ? "fails" : "answers", total - (first || waited)]]
    .filter(([, time]) => time > 0.0005);
  let x = 0;
  return html`<figure class="times">
    <svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">${parts.map(([name, time]) => {
      const width = (time / total) * 1000, from = x;
      x += width;
      return html`<rect class=${name} x=${from} y="0" width=${Math.max(2, width)} height="10" />`;
    })}</svg>
    <figcaption>${parts.map(([name, time]) => html`<span class=${name}>${name} ${seconds(time)}</span>`)}
      <span>together ${seconds(total)}</span></figcaption>
  </figure>`;
}

function Long({text}) {
  const [all, show] = useState(false);
  if (text.length <= LONGEST || all) return text;
  return html`${text.slice(0, LONGEST)}<p class="soft">${count(text.length - LONGEST)} more characters${" "}
    <button class="small" onClick=${() => show(true)}>Show them</button></p>`;
}

const Call = ({call}) => html`<div class="call"><b>${call.name || "(no name)"}</b>
  ${call.id && html`<span class="soft">${call.id}</span>`}<pre>${pretty(call.arguments)}</pre></div>`;

function Asked({fields}) {
  const messages = Array.isArray(fields.messages) ? fields.messages : [];
  const tools = Array.isArray(fields.tools) ? fields.tools : [];
  const others = Object.entries(fields).filter(([name]) => name !== "messages" && name !== "tools");
  return html`
    ${messages.map((message) => html`<div class="message"><span class="role">${message.role}</span>
      <div class="text"><${Long} text=${words(message.content)} /></div>
      ${(message.tool_calls || []).map((call) => html`<${Call} call=${{id: call.id, ...call.function}} />`)}</div>`)}
    ${tools.length > 0 && html`<details class="message"><summary><span class="role">tools</span>${" "}
      ${tools.map((tool) => (tool.function || tool).name).join(", ")}</summary>
      <pre>${JSON.stringify(tools, null, 2)}</pre></details>`}
    ${others.length > 0 && html`<dl class="fields">${others.map(([name, value]) => html`
      <div><dt>${name}</dt><dd>${JSON.stringify(value)}</dd></div>`)}</dl>`}`;
}

function Wrote({raw, clean}) {
  const [before, changed, after] = useMemo(() => difference(raw.content, clean.content), [raw.content, clean.content]);
  const empty = !raw.content && !raw.reasoning && !raw.calls.length;
  return html`
    ${raw.reasoning && html`<div class="message"><span class="role">thinking, as the engine separated it</span>
      <div class="text mono"><${Long} text=${raw.reasoning} /></div></div>`}
    ${raw.content && html`<div class="text mono">${changed.length > LONGEST
      ? html`<${Long} text=${raw.content} />` : html`${before}${changed && html`<mark>${changed}</mark>`}${after}`}</div>`}
    ${raw.calls.map((call) => html`<${Call} call=${call} />`)}
    ${raw.error && html`<pre class="problem">${JSON.stringify(raw.error, null, 2)}</pre>`}
    ${empty && !raw.error && html`<p class="soft">Nothing.</p>`}
    <p class="soft">finish: ${raw.finish || "–"}</p>`;
}

export function Got({clean, request = {}}) {
  const empty = !clean.content && !clean.reasoning && !clean.calls.length;
  return html`
    ${clean.reasoning && html`<details class="message" open=${clean.reasoning.length < 600}>
      <summary><span class="role">thinking</span></summary><div class="text"><${Long} text=${clean.reasoning} /></div></details>`}
    ${clean.content && html`<div class="text"><${Long} text=${clean.content} /></div>`}
    ${clean.calls.map((call) => html`<${Call} call=${call} />`)}
    ${request.error && html`<div class="problem"><strong>${request.error.status} ${request.error.code}</strong>${" "}
      ${request.error.message}</div>`}
    ${empty && !request.error && html`<p class="soft">Nothing.</p>`}
    <p class="soft">finish: ${clean.finish || "–"}${clean.choices > 1 && html` · first of ${clean.choices} choices`}</p>`;
}

const Pane = ({title, note, kind, children}) => html`<section class="pane ${kind}" tabindex="0" aria-label=${title}>
  <h3>${title}</h3>${note && html`<p class="soft">${note}</p>`}${children}</section>`;

function Payloads({recording}) {
  const rows = [];
  let raw = 0, clean = 0;
  for (const [ms, more, given] of recording.marks) {
    rows.push([ms, recording.raw.slice(raw, raw + more), recording.clean.slice(clean, clean + given)]);
    raw += more;
    clean += given;
  }
  const shown = rows.slice(0, 500);
  return html`<${Table} label="Payloads" heads=${[["ms", "number"], ["from the engine"], ["to the client"]]}>
      ${shown.map(([ms, from, to]) => html`<tr class="payload"><td class="number">${ms}</td><td><pre>${from.join("\n")}</pre></td>
        <td><pre>${to.length ? to.join("\n") : "(held back)"}</pre></td></tr>`)}</${Table}>
    ${rows.length > shown.length && html`<p class="soft">${many(rows.length - shown.length, "further step")}: see the file.</p>`}`;
}

function Unrecorded({request}) {
  const base = `${location.origin}/-`;
  return html`<section class="empty">
    <h2>${request ? "Its text was not recorded" : "How to see what a model wrote"}</h2>
    <p>ctxgate keeps the figures of each request, but no prompt and no answer unless you say so. To see the model's own
      words beside what the client got, choose one:</p>
    <ul>
      <li><b>One program:</b> give it this base URL instead of <code>/v1</code>. Its chats are recorded, nobody else's.
        <${Code} text=${base} /></li>
      <li><b>One try:</b> ask in the <a href="#/playground">Playground</a>; it is always recorded.</li>
      <li><b>Everybody:</b> add this to config.yaml. It takes effect at once, for requests that come from then on.
        <${Code} text=${"log:\n  bodies: true"} /></li>
    </ul>
    <p class="soft">Recordings stay in memory, 32 MB of them at most, and end with the gateway.</p>
  </section>`;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const curl = (fields) => `curl ${location.origin}/v1/chat/completions -H 'content-type: application/json' -d ` +
  quoted(JSON.stringify(fields));

function save(name, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], {type: "application/json"}));
  Object.assign(document.createElement("a"), {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const TABS = [["text", "Text"], ["payloads", "Payloads"], ["json", "JSON"]];

// Asked, written and got, side by side. Also the right side of the playground.
export function Sides({request, recording, replayed, children}) {
  const [tab, show] = useState("text");
  const raw = useMemo(() => fold(recording.raw), [recording.raw]);
  const clean = useMemo(() => fold(replayed ? replayed.clean : recording.clean), [recording.clean, replayed]);
  const api = request.api !== "chat" && html`<p class="soft">The client spoke ${apiName(request.api)}; both sides are shown as
    OpenAI chat, into which ctxgate translates.</p>`;
  return html`
    <div class="bar" role="group" aria-label="Shown as">${TABS.map(([name, title]) => html`
      <button aria-pressed=${tab === name ? "true" : "false"} onClick=${() => show(name)}>${title}</button>`)}
      ${children}
      ${recording.cut && html`<span class="badge bad">too long: a part was not recorded</span>`}</div>
    ${api}
    ${tab === "text" && html`<div class="panes">
      <${Pane} title="Asked" kind="asked"><${Asked} fields=${recording.request} /></${Pane}>
      <${Pane} title="The model wrote" kind="raw"
        note=${recording.raw.length > 0 && "Amber: what the client did not get as text."}>
        ${recording.raw.length ? html`<${Wrote} raw=${raw} clean=${clean} />`
          : html`<p class="soft">${request.error ? "Nothing: the request ended first." : "Nothing yet."}</p>`}</${Pane}>
      <${Pane} title=${replayed ? `Read as ${replayed.format}` : "The client got"} kind="clean"
        note=${replayed && "What the client would have got. What it really got is under its own format."}>
        <${Got} clean=${clean} request=${replayed ? {} : request} /></${Pane}>
    </div>`}
    ${tab === "payloads" && html`<${Payloads} recording=${recording} />`}
    ${tab === "json" && html`<h3>The client's request</h3><pre class="boxed">${JSON.stringify(recording.request, null, 2)}</pre>
      ${Object.keys(recording.sent).length > 0 && html`<h3>How the engine's request differed</h3><pre class="boxed">${JSON.stringify(recording.sent, null, 2)}</pre>`}
      <h3>The log's entry</h3><pre class="boxed">${JSON.stringify(request, null, 2)}</pre>`}`;
}

function Formats({query, recording}) {
  const {value} = useAnswer("/-/formats");
  const choose = (event) => go("live", {...query, as: event.target.value});
  return html`<label class="inline">read as${" "}<select value=${query.as || ""} onChange=${choose}>
    <option value="">${recording.tool_call_format} (as it was)</option>
    ${(value ? value.formats : []).map((name) => html`<option value=${name}>${name}</option>`)}
  </select></label>`;
}

export default function Detail({query, gateway}) {
  const {id, as: format} = query;
  const {as, id: _, ...list} = query;
  const back = href("live", list);
  const heading = useRef(null);
  const {requests} = gateway;
  const over = requests.some((entry) => entry.key === id);
  const {request, recording, running, error} = useRequest(id, format, over);
  const {value: read, error: unread} = useAnswer(
    format && recording && !running ? `/-/requests/${encodeURIComponent(id)}?as=${encodeURIComponent(format)}` : "");
  const at = requests.findIndex((entry) => String(entry.id) === id || entry.key === id);
  const near = (step) => at >= 0 && requests[at + step] && href("live", {...list, id: requests[at + step].id});
  useEffect(() => { if (heading.current) heading.current.focus(); }, [id, Boolean(request)]);
  useKeyboard((key) => {
    const next = {j: near(1), k: near(-1), Escape: back}[key];
    if (next) location.hash = next.slice(1);
    return Boolean(next);
  });
  const raw = useMemo(() => fold(recording ? recording.raw : []), [recording]);
  const clean = useMemo(() => fold(recording ? recording.clean : []), [recording]);
  const moves = html`<div class="bar"><a class="button" href=${back}>← all requests</a>
    ${near(-1) && html`<a class="button" href=${near(-1)}>newer</a>`}
    ${near(1) && html`<a class="button" href=${near(1)}>older</a>`}</div>`;
  if (id === "words") return html`${moves}<h1 tabindex="-1" ref=${heading}>The texts of requests</h1><${Unrecorded} />`;
  if (error) return html`${moves}<h1 tabindex="-1" ref=${heading}>Request ${id}</h1><${Problem} error=${error} />`;
  if (!request) return html`${moves}<p class="soft late">Loading …</p>`;
  const asked = recording ? changes(recording.request, recording.sent) : [];
  return html`${moves}
    <h1 tabindex="-1" ref=${heading}>${request.id ? `Request ${request.id}` : "Request in flight"}
      ${" "}<span class="soft">${request.model}${request.at ? `, ${clock(request.at)}` : ""}</span>
      ${" "}${running ? html`<span class="badge busy">${request.state}</span>` : html`<${Outcome} entry=${request} />`}</h1>
    <${Times} request=${request} recording=${recording} />
    <h2>What happened</h2>
    <${Story} request=${request} recording=${recording} asked=${asked} raw=${raw} clean=${clean} running=${running} />
    ${recording ? html`
      ${unread && html`<${Problem} error=${unread} />`}
      <${Sides} request=${request} recording=${recording} replayed=${read && read.replayed}>
        <span class="push"></span>
        ${!running && recording.raw.length > 0 && html`<${Formats} query=${query} recording=${recording} />`}
        <${Copy} text=${curl(recording.request)} label="Copy as curl" />
        <button class="small" onClick=${() => save(`request-${id}.json`, {request, recording})}>Download</button>
      </${Sides}>`
    : html`<${Unrecorded} request=${request} />`}`;
}
