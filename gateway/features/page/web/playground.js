// Playground: conversations with one model or two, always recorded: what a model wrote is there on demand.
import {html, useEffect, useMemo, useRef, useState} from "./preact.js";
import {Copy, Lazy, Problem, Refused, ask, events, get, useAnswer, useGateway} from "./base.js";
import {all, remove, removeAll, save} from "./conversations.js";
import {fold, pretty, words} from "./fold.js";
import Markdown from "./markdown.js";

const WEATHER = [{type: "function", function: {name: "get_weather", description: "The current weather in a city.",
  parameters: {type: "object", properties: {city: {type: "string"}, unit: {type: "string", enum: ["celsius", "fahrenheit"]}},
    required: ["city"]}}}];
const FORM = {model: "", beside: "", system: "", temperature: "", max_tokens: "1024", tools: "", json: false, stream: true};
const IMAGE_BYTES = 8e6, TEXT_BYTES = 200e3, FILES = 8;

const fresh = (form = FORM) => ({id: crypto.getRandomValues(new Uint32Array(2)).join("-"), at: Date.now(), form, threads: [[], []]});
// What was asked first; of a message with files, what was written beside them.
function title({threads: [[first]]}) {
  if (!first) return "New conversation";
  const last = Array.isArray(first.content) ? first.content[first.content.length - 1] : null;
  return (last && last.type !== "text" ? "A picture" : last ? last.text : words(first.content)).slice(0, 60);
}

// What of a message the model gets.
const sent = ({role, content, tool_calls, tool_call_id}) => ({role, content, ...(tool_calls && {tool_calls}), ...(tool_call_id && {tool_call_id})});

function fields(form, model, thread) {
  const messages = thread.filter((message) => !message.error).map(sent);
  const body = {messages: form.system ? [{role: "system", content: form.system}, ...messages] : messages};
  if (model) body.model = model;
  if (form.temperature !== "") body.temperature = Number(form.temperature);
  if (form.max_tokens !== "") body.max_tokens = Number(form.max_tokens);
  if (form.tools.trim()) body.tools = JSON.parse(form.tools);
  if (form.json) body.response_format = {type: "json_object"};
  if (form.stream) body.stream = true;
  return body;
}

// Asks by the path that records; without the right to that, by the usual one.
async function send(body, signal, recorded = true) {
  try {
    return await ask(recorded ? "/-/chat/completions" : "/v1/chat/completions", {json: body, signal});
  } catch (error) {
    if (recorded && error instanceof Refused && error.code === "insufficient_scope") return send(body, signal, false);
    throw error;
  }
}

async function* payloads(answer, stream) {
  if (!stream) { yield await answer.text(); return; }
  for await (const {data} of events(answer)) if (data !== "[DONE]") yield data;
}

// The answer as a message; {message, error}. show: called with what came so far.
async function answer(body, signal, show) {
  const came = [];
  let error = null;
  try {
    for await (const payload of payloads(await send(body, signal), body.stream)) {
      came.push(payload);
      show(came);
    }
  } catch (problem) {
    if (problem.name !== "AbortError") error = problem;
  }
  const clean = fold(came);
  if (clean.error) error = new Refused(clean.error.status || 500, clean.error);
  const calls = clean.calls.filter(Boolean).map((call) => ({id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}));
  const request = came.length ? JSON.parse(came[0]).id || "" : "";
  if (!clean.content && !calls.length && !clean.reasoning) return {error};
  return {error, message: {role: "assistant", content: clean.content || (calls.length ? null : ""), request, reasoning: clean.reasoning,
    ...(calls.length && {tool_calls: calls})}};
}

const images = (content) => (Array.isArray(content) ? content : []).filter((part) => part.type === "image_url");
const text = (content) => (Array.isArray(content) ? content.filter((part) => part.type === "text").map((part) => part.text).join("\n") : content);

function Thought({text}) {
  return html`<details class="thought"><summary class="soft small">What it thought</summary><div class="text">${text}</div></details>`;
}

function Raw({id}) {
  const {value, error} = useAnswer(`/-/requests/${encodeURIComponent(id)}`);
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return html`<p class="soft late">Loading …</p>`;
  if (!value.recording) return html`<p class="soft">It isn't recorded any more.</p>`;
  return html`<p class="soft small">Request ${value.request.id}</p><${Lazy} from="./sides.js" request=${value.request} recording=${value.recording} />`;
}

// Has a model of the gateway speak a text.
function Speak({text}) {
  const [url, hear] = useState(""), [error, fail] = useState(null), [busy, wait] = useState(false);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  const go = async () => {
    wait(true); fail(null);
    try {
      hear(URL.createObjectURL(await (await ask("/v1/audio/speech", {json: {input: text, response_format: "mp3"}})).blob()));
    } catch (problem) { fail(problem); }
    wait(false);
  };
  if (url) return html`<audio controls autoplay src=${url}></audio>`;
  return html`<button class="small" disabled=${busy} onClick=${go}>Speak</button>${error && html`<${Problem} error=${error} />`}`;
}

function Message({message, again, speaks}) {
  const [raw, show] = useState(false);
  const {role, content, reasoning, tool_calls: calls = [], request} = message;
  return html`<div class="message ${role}"><span class="role">${role === "tool" ? "result of the tool" : role}</span>
    ${reasoning && html`<${Thought} text=${reasoning} />`}
    ${images(content).map((part) => html`<img class="attached" alt="attached" src=${part.image_url.url} />`)}
    ${content && (role === "assistant" ? html`<${Markdown} text=${content} />` : html`<div class="text">${text(content)}</div>`)}
    ${calls.map((call) => html`<div class="call"><b>${call.function.name}</b><pre>${pretty(call.function.arguments)}</pre></div>`)}
    ${role === "assistant" && html`<div class="bar tools">
      ${content && html`<${Copy} text=${content} />`}
      ${content && speaks && html`<${Speak} text=${content} />`}
      ${again && html`<button class="small" onClick=${again}>Regenerate</button>`}
      ${request && html`<button class="small" aria-pressed=${raw ? "true" : "false"} onClick=${() => show(!raw)}>Raw</button>`}</div>`}
    ${raw && html`<${Raw} id=${request} />`}</div>`;
}

function Results({calls, give}) {
  const [texts, set] = useState(calls.map(() => ""));
  return html`<form onSubmit=${(event) => { event.preventDefault(); give(texts); }}>
    ${calls.map((call, at) => html`<label>Result of ${call.function.name}
      <textarea rows="2" required value=${texts[at]}
        onInput=${(event) => set(texts.map((text, place) => (place === at ? event.target.value : text)))}></textarea></label>`)}
    <div class="bar"><button class="main">Send ${calls.length > 1 ? "the results" : "the result"}</button></div>
  </form>`;
}

function Models({label, none, value, models, choose}) {
  return html`<label>${label} <select value=${value} onChange=${(event) => choose(event.target.value)}>
    <option value="">${none}</option>${models.map((one) => html`<option value=${one.id}>${one.id}</option>`)}</select></label>`;
}

function Settings({form, set, models}) {
  const field = (name, event) => set({[name]: event.target.value});
  return html`<div class="settings">
    <${Models} label="Model" none="default" value=${form.model} models=${models} choose=${(model) => set({model})} />
    <${Models} label="Beside it" none="nobody" value=${form.beside} models=${models} choose=${(beside) => set({beside})} />
  </div>
  <details class="more"><summary>System message, tools, sampling</summary>
    <label>System message <textarea rows="2" value=${form.system} onInput=${(event) => field("system", event)}></textarea></label>
    <div class="settings">
    <label>Temperature <input type="number" min="0" max="2" step="0.1" placeholder="model's" value=${form.temperature}
      onInput=${(event) => field("temperature", event)} /></label>
    <label>Most tokens <input type="number" min="1" value=${form.max_tokens}
      onInput=${(event) => field("max_tokens", event)} /></label>
    <label><input type="checkbox" checked=${form.stream} onChange=${() => set({stream: !form.stream})} /> streamed</label>
    <label><input type="checkbox" checked=${form.json} onChange=${() => set({json: !form.json})} /> JSON answer</label>
    <label><input type="checkbox" checked=${Boolean(form.tools)}
      onChange=${() => set({tools: form.tools ? "" : JSON.stringify(WEATHER, null, 1)})} /> tools</label></div>
    ${form.tools && html`<label>Tools, as JSON <textarea rows="6" class="mono" value=${form.tools}
      onInput=${(event) => field("tools", event)}></textarea></label>`}
  </details>`;
}

// The thread of one model. came: the payloads of its answer in progress; null without one.
function Thread({name, thread, came, error, again, give, speaks}) {
  const last = thread[thread.length - 1];
  const clean = useMemo(() => (came ? fold(came) : null), [came && came.length]);
  return html`<div class="thread">${name && html`<h2>${name}</h2>`}
    <div aria-live="polite">${thread.map((message, at) => html`<${Message} message=${message} key=${at} speaks=${speaks}
        again=${!came && message === last && again} />`)}
      ${came && html`<div class="message assistant"><span class="role">assistant</span>
        ${clean.reasoning && html`<${Thought} text=${clean.reasoning} />`}
        ${clean.content && html`<${Markdown} text=${clean.content} />`}
        ${clean.calls.filter(Boolean).map((call) => html`<div class="call"><b>${call.name}</b><pre>${pretty(call.arguments)}</pre></div>`)}
        ${!came.length && html`<p class="soft pending">waits for the model …</p>`}</div>`}</div>
    ${error && html`<${Problem} error=${error} />${again && !came && html`<button class="small" onClick=${again}>Try again</button>`}`}
    ${!came && last && last.tool_calls && html`<${Results} calls=${last.tool_calls} give=${give} key=${thread.length} />`}</div>`;
}

// A file as parts of a message. Throws Refused.
async function part(file) {
  const refuse = (message) => new Refused(400, {code: "file", message: `${file.name}: ${message}`});
  if (file.type.startsWith("image/")) {
    if (file.size > IMAGE_BYTES) throw refuse("a picture may have 8 MB");
    const url = await new Promise((done, fail) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.onerror = () => fail(refuse("it can't be read"));
      reader.readAsDataURL(file);
    });
    return {type: "image_url", image_url: {url}, name: file.name};
  }
  if (/^(audio|video)\//.test(file.type)) {
    const form = new FormData();
    form.append("file", file);
    return {type: "text", text: (await (await ask("/v1/audio/transcriptions", {form})).json()).text, name: file.name};
  }
  if (file.size > TEXT_BYTES) throw refuse("a text may have 200 kB");
  try {
    const content = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    return {type: "text", text: `File ${file.name}:\n\n${content}`, name: file.name};
  } catch {
    throw refuse("only pictures, sound and texts can be attached");
  }
}

const bare = ({name, ...rest}) => rest;

function Composer({say, busy, stop, files, drop, attach, children}) {
  const [text, type] = useState("");
  const box = useRef(null), pick = useRef(null);
  useEffect(() => { if (box.current) box.current.focus(); }, []);
  const go = (event) => {
    event.preventDefault();
    if ((!text.trim() && !files.length) || busy) return;
    say(files.length ? [...files.map(bare), ...(text.trim() ? [{type: "text", text}] : [])] : text);
    type("");
    drop([]);
  };
  return html`<form class="composer" onSubmit=${go}>
    ${files.length > 0 && html`<ul class="files">${files.map((file, at) => html`<li>${file.type === "image_url"
        && html`<img alt="" src=${file.image_url.url} />`}${file.name}
      <button type="button" class="small" aria-label=${`Leave out ${file.name}`} onClick=${() => drop(files.filter((_, place) => place !== at))}>×</button></li>`)}</ul>`}
    <label>Message <textarea ref=${box} rows="3" value=${text} placeholder="Ask; drop pictures, sound and texts here"
      onInput=${(event) => type(event.target.value)}
      onPaste=${(event) => { if (event.clipboardData.files.length) { event.preventDefault(); attach(event.clipboardData.files); } }}
      onKeyDown=${(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) go(event); }}></textarea></label>
    <div class="bar">${busy ? html`<button type="button" class="main" onClick=${stop}>Stop</button>` : html`<button class="main">Send</button>`}
      <button type="button" onClick=${() => pick.current.click()}>Attach</button>
      <input ref=${pick} type="file" multiple hidden aria-label="Files" onChange=${(event) => { attach(event.target.files); event.target.value = ""; }} />
      ${children}</div></form>`;
}

function Shelf({list, current, open, forget, forgetAll, begin}) {
  return html`<section class="shelf" aria-label="Conversations">
    <div class="bar"><button onClick=${begin}>New conversation</button></div>
    ${list.length > 0 && html`<ul>${list.map((one) => html`<li class=${one.id === current ? "chosen" : ""} key=${one.id}>
      <button class="quiet name" aria-current=${one.id === current ? "true" : undefined} onClick=${() => open(one)}>${title(one)}</button>
      <button class="quiet" aria-label=${`Delete ${title(one)}`} onClick=${() => forget(one)}>×</button></li>`)}</ul>
      <p class="soft small">Kept in this browser alone. <button class="small" onClick=${() => confirm("Delete all conversations?") && forgetAll()}>Delete all</button></p>`}
  </section>`;
}

export default function Playground({query}) {
  useGateway();
  const [list, fill] = useState([]);
  const [current, change] = useState(() => fresh({...FORM, model: query.model || ""}));
  const [came, show] = useState([null, null]);
  const [errors, fail] = useState([null, null]);
  const [files, drop] = useState([]);
  const [over, hover] = useState(false);
  const running = useRef(null), latest = useRef(current);
  const first = useRef(current);
  latest.current = current;
  const {value} = useAnswer("/v1/models");
  const known = (value && value.data) || [], models = known.filter((one) => one.roles.includes("chat"));
  const {form, threads} = current;
  const sides = form.beside ? [0, 1] : [0];
  const busy = came.some(Boolean);

  useEffect(() => {
    all().then((found) => {
      fill(found);
      if (!query.model && found.length && latest.current === first.current) change(found[0]);
    });
    return () => running.current && running.current.abort();
  }, []);
  const keep = (next) => {
    latest.current = next;
    change(next);
    if (!next.threads[0].length) return;
    fill((before) => [next, ...before.filter((one) => one.id !== next.id)]);
    save(next);
  };
  const set = (more) => keep({...latest.current, form: {...latest.current.form, ...more}});
  const put = (side, thread) => keep({...latest.current, at: Date.now(), threads: latest.current.threads.map((old, at) => (at === side ? thread : old))});
  const place = (setter, side, value) => setter((before) => before.map((old, at) => (at === side ? value : old)));

  const run = async (side, thread, signal) => {
    const {form} = latest.current;
    place(fail, side, null);
    let body;
    try {
      body = fields(form, side ? form.beside : form.model, thread);
    } catch (problem) {
      place(fail, side, new Refused(400, {code: "tools", message: `The tools are not valid JSON: ${problem.message}`}));
      return;
    }
    place(show, side, []);
    let frame = 0;
    const {message, error} = await answer(body, signal, (so) => {
      frame = frame || requestAnimationFrame(() => { frame = 0; if (!signal.aborted) place(show, side, [...so]); });
    });
    cancelAnimationFrame(frame);
    if (message) put(side, [...thread, message]);
    place(fail, side, error);
    place(show, side, null);
  };
  // work: [side, thread] of each model that is asked.
  const start = async (work) => {
    const ends = running.current = new AbortController();
    for (const [side, thread] of work) put(side, thread);
    await Promise.all(work.map(([side, thread]) => run(side, thread, ends.signal)));
    if (running.current === ends) running.current = null;
  };
  const say = (content) => start(sides.map((side) => [side, [...threads[side], {role: "user", content}]]));
  const again = (side) => () => {
    const thread = threads[side], from = thread.map((message) => message.role).lastIndexOf("assistant");
    start([[side, from === thread.length - 1 ? thread.slice(0, from) : thread]]);
  };
  const give = (side) => (texts) => {
    const thread = threads[side], calls = thread[thread.length - 1].tool_calls;
    start([[side, [...thread, ...calls.map((call, at) => ({role: "tool", tool_call_id: call.id, content: texts[at]}))]]]);
  };
  const open = (one) => {
    if (running.current) running.current.abort();
    latest.current = one;
    change(one); show([null, null]); fail([null, null]); drop([]);
  };
  const begin = () => open(fresh(form));
  const forget = async (one) => {
    await remove(one.id);
    fill(list.filter((other) => other.id !== one.id));
    if (one.id === current.id) begin();
  };
  const attach = async (chosen) => {
    try {
      const parts = await Promise.all([...chosen].slice(0, FILES - files.length).map(part));
      drop([...files, ...parts]);
      place(fail, 0, null);
    } catch (problem) {
      place(fail, 0, problem);
    }
  };
  const dropped = (event) => {
    event.preventDefault();
    hover(false);
    attach(event.dataTransfer.files);
  };
  let curl = "";
  try { curl = `curl ${location.origin}/v1/chat/completions -H 'content-type: application/json' -d '` +
    JSON.stringify(fields(form, form.model, threads[0])).replaceAll("'", "'\\''") + "'"; } catch { /* the tools are no JSON yet */ }
  const name = (side) => form.beside && ((side ? form.beside : form.model) || "default");
  return html`<h1>Playground</h1>
    <div class="playground">
      <${Shelf} list=${list} current=${current.id} open=${open} begin=${begin} forget=${forget}
        forgetAll=${() => removeAll().then(() => { fill([]); begin(); })} />
      <div class="chat ${over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); hover(true); }}
          onDragLeave=${() => hover(false)} onDrop=${dropped}>
        <${Settings} form=${form} set=${set} models=${models} />
        <div class=${form.beside ? "threads two" : "threads"}>${sides.map((side) => html`<${Thread} name=${name(side)} key=${side}
          thread=${threads[side]} came=${came[side]} error=${errors[side]} again=${!busy && threads[side].length > 0 && again(side)} give=${give(side)}
          speaks=${known.some((one) => one.roles.includes("speech"))} />`)}</div>
        <${Composer} say=${say} busy=${busy} stop=${() => running.current && running.current.abort()} files=${files} drop=${drop}
          attach=${attach} key=${current.id}>${threads[0].length > 0 && !busy && curl && html`<${Copy} text=${curl} label="Copy as curl" />`}</${Composer}>
      </div>
    </div>`;
}
