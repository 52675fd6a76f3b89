// Playground: a chat with a model, always recorded, with what it wrote beside what a client gets.
import {html, useEffect, useRef, useState} from "./preact.js";
import {Copy, Problem, Refused, ask, events, get, useAnswer, useGateway} from "./base.js";
import {Got, Sides} from "./detail.js";
import {fold, pretty, words} from "./fold.js";

const WEATHER = [{type: "function", function: {name: "get_weather", description: "The current weather in a city.",
  parameters: {type: "object", properties: {city: {type: "string"}, unit: {type: "string", enum: ["celsius", "fahrenheit"]}},
    required: ["city"]}}}];
const SAVED = "ctxgate.playground";
const START = {model: "", system: "", temperature: "", max_tokens: "256", tools: "", json: false, stream: true, messages: []};

const restored = () => { try { return {...START, ...JSON.parse(sessionStorage.getItem(SAVED))}; } catch { return START; } };

function fields(form, messages) {
  const body = {messages: form.system ? [{role: "system", content: form.system}, ...messages] : messages};
  if (form.model) body.model = form.model;
  if (form.temperature !== "") body.temperature = Number(form.temperature);
  if (form.max_tokens !== "") body.max_tokens = Number(form.max_tokens);
  if (form.tools.trim()) body.tools = JSON.parse(form.tools);
  if (form.json) body.response_format = {type: "json_object"};
  if (form.stream) body.stream = true;
  return body;
}

// Asks by the path that records; without the right to that, by the usual one.
async function send(body, signal, recorded) {
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

function Message({message}) {
  return html`<div class="message"><span class="role">${message.role === "tool" ? "result of the tool" : message.role}</span>
    ${message.content && html`<div class="text">${words(message.content)}</div>`}
    ${(message.tool_calls || []).map((call) => html`<div class="call"><b>${call.function.name}</b>
      <pre>${pretty(call.function.arguments)}</pre></div>`)}</div>`;
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

function Settings({form, set, models}) {
  const field = (name, event) => set({[name]: event.target.value});
  return html`<div class="settings">
    <label>Model <select value=${form.model} onChange=${(event) => field("model", event)}>
      <option value="">default</option>${models.map((one) => html`<option value=${one.id}>${one.id}</option>`)}</select></label>
    <label>Temperature <input type="number" min="0" max="2" step="0.1" placeholder="model's" value=${form.temperature}
      onInput=${(event) => field("temperature", event)} /></label>
    <label>Most tokens <input type="number" min="1" value=${form.max_tokens}
      onInput=${(event) => field("max_tokens", event)} /></label>
    <label><input type="checkbox" checked=${form.stream} onChange=${() => set({stream: !form.stream})} /> streamed</label>
    <label><input type="checkbox" checked=${form.json} onChange=${() => set({json: !form.json})} /> JSON answer</label>
    <label><input type="checkbox" checked=${Boolean(form.tools)}
      onChange=${() => set({tools: form.tools ? "" : JSON.stringify(WEATHER, null, 1)})} /> tools</label>
  </div>
  ${form.tools && html`<label>Tools, as JSON <textarea rows="6" class="mono" value=${form.tools}
    onInput=${(event) => field("tools", event)}></textarea></label>`}
  <label>System message <textarea rows="1" value=${form.system} onInput=${(event) => field("system", event)}></textarea></label>`;
}

export default function Playground() {
  useGateway();
  const [form, change] = useState(restored);
  const [text, type] = useState("");
  const [got, show] = useState(null); // payloads so far
  const [record, keep] = useState(null);
  const [error, fail] = useState(null);
  const [busy, work] = useState(null);
  const box = useRef(null);
  const {value} = useAnswer("/v1/models");
  const models = ((value && value.data) || []).filter((one) => one.roles.includes("chat"));
  const set = (more) => change((before) => ({...before, ...more}));
  useEffect(() => { sessionStorage.setItem(SAVED, JSON.stringify(form)); }, [form]);
  useEffect(() => { if (box.current) box.current.focus(); }, []);

  const run = async (messages) => {
    let body;
    try { body = fields(form, messages); } catch (problem) { fail(new Refused(400, {code: "tools", message: `The tools are not valid JSON: ${problem.message}`})); return; }
    const ends = new AbortController(), came = [];
    set({messages});
    work(ends); fail(null); keep(null); show([]);
    try {
      for await (const payload of payloads(await send(body, ends.signal, true), form.stream)) {
        came.push(payload);
        show([...came]);
      }
    } catch (problem) {
      if (problem.name !== "AbortError") fail(problem);
    }
    const clean = fold(came), id = came.length ? (JSON.parse(came[0]).id || "") : "";
    if (clean.error) fail(new Refused(clean.error.status || 500, clean.error));
    const calls = clean.calls.filter(Boolean).map((call) => ({id: call.id, type: "function",
      function: {name: call.name, arguments: call.arguments}}));
    if (clean.content || calls.length) {
      set({messages: [...messages, {role: "assistant", content: clean.content || null, ...(calls.length ? {tool_calls: calls} : {})}]});
    }
    work(null);
    if (!id) return;
    try { keep(await get(`/-/requests/${encodeURIComponent(id)}`)); } catch { keep(null); }
  };
  const say = (event) => {
    event.preventDefault();
    if (!text.trim() || busy) return;
    const messages = [...form.messages, {role: "user", content: text}];
    type("");
    run(messages);
  };
  const last = form.messages[form.messages.length - 1];
  const calls = !busy && last && last.tool_calls;
  const give = (texts) => run([...form.messages, ...calls.map((call, at) => ({role: "tool", tool_call_id: call.id, content: texts[at]}))]);
  let curl = "";
  try { curl = `curl ${location.origin}/v1/chat/completions -H 'content-type: application/json' -d '` +
    JSON.stringify(fields(form, form.messages)).replaceAll("'", "'\\''") + "'"; } catch { /* the tools are no JSON yet */ }
  return html`<h1>Playground</h1>
    <div class="chat">
      <${Settings} form=${form} set=${set} models=${models} />
      <div aria-live="polite">${form.messages.map((message) => html`<${Message} message=${message} />`)}
        ${busy && html`<div class="message"><span class="role">assistant</span>
          ${got.length ? html`<${Got} clean=${fold(got)} />` : html`<p class="soft">waits for the model …</p>`}</div>`}</div>
      ${error && html`<${Problem} error=${error} />`}
      ${calls ? html`<${Results} calls=${calls} give=${give} key=${form.messages.length} />` : html`
        <form onSubmit=${say}>
          <label>Message <textarea ref=${box} rows="2" value=${text} onInput=${(event) => type(event.target.value)}
            onKeyDown=${(event) => { if (event.key === "Enter" && !event.shiftKey) say(event); }}></textarea></label>
          <div class="bar"><button class="main" disabled=${Boolean(busy)}>Send</button>
            ${busy && html`<button type="button" onClick=${() => busy.abort()}>Stop</button>`}
            ${form.messages.length > 0 && !busy && html`
              <button type="button" onClick=${() => { set({messages: []}); keep(null); fail(null); }}>New conversation</button>
              ${curl && html`<${Copy} text=${curl} label="Copy as curl" />`}`}</div>
        </form>`}
    </div>
    ${record && record.recording && html`<h2>The last answer, request ${record.request.id}</h2>
      <${Sides} request=${record.request} recording=${record.recording} />`}`;
}
