// One model: what it is, what it can do here, how it fared, and what can be done about that.
import {html, useEffect, useState} from "./preact.js";
import {Facts, Problem, Refused, Table, ago, ask, bytes, count, get, href, seconds, useAnswer} from "./base.js";
import {Board, begin, useJobs} from "./jobs.js";
import {waitsFor} from "./live.js";
import {LoadButton, State, speedOf, waitingLine} from "./models.js";
import {fold, pretty} from "./fold.js";

const ASKED = "What is the weather in Paris in celsius? Use the tool.";
const TOOL = {type: "function", function: {name: "get_weather", description: "Current weather in a city.", parameters: {
  type: "object", properties: {city: {type: "string"}, unit: {type: "string", enum: ["celsius", "fahrenheit"]}}, required: ["city"]}}};
const path = (name) => encodeURIComponent(name);

function Log({name}) {
  const [text, set] = useState(null);
  const [error, fail] = useState(null);
  const read = async () => {
    try {
      set(await (await ask(`/-/logs/${path(name)}`)).text());
      fail(null);
    } catch (problem) {
      fail(problem);
    }
  };
  return html`<div class="bar"><button class="small" onClick=${read}>${text === null ? "Show the engine's log" : "Read it again"}</button></div>
    ${error && html`<${Problem} error=${error} />`}
    ${text !== null && html`<pre class="boxed" tabindex="0">${text || "Nothing yet."}</pre>`}`;
}

// Why it can't answer, and what to do.
function Absent({name}) {
  const {error} = useAnswer(`/v1/models/${path(name)}`);
  return error ? html`<p>${error.message}</p>` : null;
}

const tile = (name, value, note, bad) => html`<div class="tile ${bad ? "bad" : ""}"><span class="soft">${name}</span>
  <strong>${value}</strong>${note && html`<span class="soft">${note}</span>`}</div>`;

function Figures({model, listed, about, requests}) {
  const {engine, calls} = model, {memory} = about || {};
  const resident = engine && engine.resident_bytes;
  return html`<section class="figures tiles" aria-label="Figures">
    ${tile("memory", bytes(resident || (memory && memory.need)), memory && `${resident ? "" : "needed, "}of ${bytes(memory.budget)}`,
      memory && !memory.fits)}
    ${tile("context", listed && listed.context_window ? count(listed.context_window) : "–", "tokens")}
    ${tile("tokens/s", speedOf(requests, model.name), about && about.tuned && about.tuned.times > 1.005
      ? `tuned: ${about.tuned.times.toFixed(2)} times` : "")}
    ${tile("calls read", count(calls.read), calls.repaired > 0 && `${count(calls.repaired)} repaired`)}
    ${tile("calls in text", count(calls.unread), calls.unread > 0 && "nobody read them", calls.unread > 0)}
    ${tile("requests", count(model.requests), `${count(model.requests - (model.outcomes.ok || 0) - (model.outcomes.client_left || 0))} failed`)}
  </section>`;
}

function Actions({model, listed, about, fail}) {
  const {jobs} = useJobs();
  const [suite, choose] = useState("smoke");
  const runs = (kinds) => jobs.some((job) => job.state === "running" && kinds.includes(job.kind));
  const press = (work) => async () => {
    try {
      await work();
      fail(null);
    } catch (error) {
      fail(error);
    }
  };
  const start = (json) => press(() => begin({model: model.name, ...json}));
  const chat = listed && listed.role === "chat", here = listed && listed.available, measures = runs(["tune", "evaluate"]);
  return html`<div class="bar">
    <${LoadButton} model=${model} listed=${listed} done=${fail} />
    ${listed && !listed.available && about && about.pull && html`<button class="small main" disabled=${runs(["download"])}
      onClick=${start({kind: "download"})}>Download</button>`}
    ${chat && !model.active && html`<button class="small" onClick=${press(() => ask("/-/default", {json: {model: model.name}}))}>Make default</button>`}
    ${chat && here && html`<a class="button small" href=${href("playground", {model: model.name})}>Chat</a>`}
    ${about && about.can_tune && html`<button class="small" disabled=${measures} onClick=${start({kind: "tune"})}
      title="Tries the engine's settings for some minutes, and writes the fastest into config.yaml">Tune</button>`}
    ${chat && here && html`<span class="together"><button class="small" disabled=${measures} onClick=${start({kind: "evaluate", suite})}
      title="Asks it to call tools, and says how often it does so rightly">Evaluate</button>
      <select class="small" aria-label="Questions" value=${suite} onChange=${(event) => choose(event.target.value)}>
        <option value="smoke">20 questions</option><option value="core">314 questions</option></select></span>`}
  </div>`;
}

// Asks for a call, and shows how each format reads what the model wrote.
function FindFormat({name, current, fail}) {
  const [found, show] = useState(null);
  const [busy, work] = useState(false);
  const [set, tell] = useState("");
  const look = async () => {
    work(true); show(null); tell("");
    try {
      const json = {model: name, messages: [{role: "user", content: ASKED}], tools: [TOOL], max_tokens: 256, temperature: 0};
      const {id} = await (await ask("/-/chat/completions", {json})).json();
      const [record, tried] = await Promise.all([get(`/-/requests/${path(id)}`), get(`/-/readings?request=${path(id)}`)]);
      show({raw: fold(record.recording.raw), ...tried});
      fail(null);
    } catch (error) {
      fail(error instanceof Refused ? error : new Refused(500, {code: "unreadable", message: String(error.message || error)}));
    }
    work(false);
  };
  const use = async (format) => {
    try {
      await ask(`/-/models/${path(name)}/format`, {json: {tool_call_format: format}});
      tell(format);
      fail(null);
    } catch (error) {
      fail(error);
    }
  };
  return html`<div class="bar"><button class="small" disabled=${busy} onClick=${look}>${busy ? "It answers …" : "Look at what it writes"}</button>
      <span class="soft small">Asks it for one call and tries every format on the answer.</span></div>
    ${set && html`<p role="status">config.yaml has <code>tool_call_format: ${set}</code> now.</p>`}
    ${found && html`<h3>It wrote</h3>
      <pre class="boxed raw" tabindex="0">${found.raw.content || found.raw.reasoning || (found.raw.calls.length ? "(the engine read the call itself)" : "(nothing)")}</pre>
      ${found.readings.length ? html`<${Table} label="How formats read it" heads=${[["Format"], ["Reads"], [html`<span class="unseen">Choose</span>`]]}>
        ${found.readings.map((one) => html`<tr key=${one.format} class=${one.format === current ? "chosen" : ""}>
          <td>${one.format}${one.format === current && html` <span class="badge">in use</span>`}</td>
          <td class="reads">${one.calls.map((call) => html`<code>${call.name} ${pretty(call.arguments).replace(/\s+/g, " ")}</code> `)}</td>
          <td class="stays">${one.format !== current && html`<button class="small" onClick=${() => use(one.format)}>Use ${one.format}</button>`}</td></tr>`)}
        </${Table}>` : html`<p>No format finds a call in it. Ask again in the <a href=${href("playground", {model: name})}>Playground</a>,
          or see <code>docs/unread-calls.md</code>.</p>`}`}`;
}

function Evaluations({name}) {
  const {jobs} = useJobs();
  const done = jobs.filter((job) => job.kind === "evaluate" && job.state === "done").length;
  const [list, set] = useState([]);
  useEffect(() => { get("/-/evaluations").then(({evaluations}) => set(evaluations), () => {}); }, [done]);
  const own = list.filter((one) => one.target && one.target.model === name && one.summary && one.summary.overall).slice(0, 5);
  if (!own.length) return html`<p class="soft">None yet. “Evaluate” asks it to call tools, and says how often it does so rightly.</p>`;
  return html`<ul>${own.map((one) => html`<li><a href=${href("evaluations", {id: one.id})}>${one.suite.id}</a>:
    ${" "}<b>${one.summary.overall.k} of ${one.summary.overall.n}</b> right <span class="soft">${(one.created || "").slice(0, 10)}</span></li>`)}</ul>`;
}

export default function Model({name, gateway, listed, fail}) {
  const model = gateway.status.models.find((one) => one.name === name);
  const {value: about, error} = useAnswer(`/-/models/${path(name)}`, 15);
  const back = html`<div class="bar"><a class="button" href="#/models">← all models</a></div>`;
  if (!model) return html`${back}<h1>${name}</h1><p>config.yaml has no such model.</p>`;
  const {engine} = model, known = (about && about.about) || {};
  const why = about ? about.evidence : listed && listed.tool_call_format_evidence;
  const mine = (job) => job.subject === name || job.model === name;
  return html`${back}
    <h1>${name} ${model.active && html`<span class="badge">default</span>`} <${State} model=${model} listed=${listed} /></h1>
    <p class="soft lead">${[about && about.display_name, known.architecture, known.parameters, known.quantization, known.size && bytes(known.size),
      model.runtime].filter(Boolean).join(" · ")}</p>
    ${error && html`<${Problem} error=${error} />`}
    <${Actions} model=${model} listed=${listed} about=${about} fail=${fail} />
    <${Board} of=${mine} fail=${fail} />
    ${listed && !listed.available && html`<${Absent} name=${name} />`}
    ${engine && engine.failure && html`<pre class="problem">${engine.failure}</pre>`}
    ${engine && engine.note && html`<p>${engine.note}</p>`}
    <${Figures} model=${model} listed=${listed} about=${about} requests=${gateway.requests} />
    ${model.waiting > 0 && html`<p>${waitingLine(model)}</p>`}
    <${Facts} rows=${[
      ["requests wait", model.waits_for && waitsFor(model.waits_for, model.held_by)],
      ["other names", listed && listed.aliases.join(", ")], ["can", listed && listed.capabilities.join(", ")],
      ["trained on", known.context && `${count(known.context)} tokens`], ["file", about && about.path], ["comes from", about && about.pull],
      ["address", engine && engine.address], ["process", engine && engine.pid], ["loaded in", engine && seconds(engine.load_seconds)],
      ["starts", engine && engine.starts], ["crashes", engine && engine.crashes],
      ["idle", engine && model.state === "ready" && engine.idle_seconds > 1 && seconds(engine.idle_seconds)],
      ["prompt tokens", count(model.prompt_tokens)], ["of them cached", count(model.cached_tokens)],
      ["tokens written", count(model.completion_tokens)],
    ]} />
    ${model.replicas.length > 0 && html`<ul>${model.replicas.map((one) => html`<li>${one.url}: ${
      one.healthy ? "answers" : "doesn't answer"}, ${one.in_flight} in flight</li>`)}</ul>`}
    <h2>Tool calls</h2>
    ${listed && html`<p>Its calls are read as <code>${(about || listed).tool_call_format}</code>${why && html`${" "}<span class="soft">(${why})</span>`}.</p>`}
    ${listed && listed.available && listed.role === "chat" && html`<${FindFormat} name=${name} current=${(about || listed).tool_call_format} fail=${fail} />`}
    <h2>Speed</h2>
    ${about && about.tuned ? html`<p>Tuned ${ago(about.tuned.at)}: of ${count(about.tuned.tried)} settings ${about.tuned.setting
        ? html`<code>${about.tuned.setting}</code> is the fastest, ${about.tuned.times.toFixed(2)} times` : "none is faster than"} the configured one.</p>`
      : html`<p class="soft">${about && about.can_tune ? "Not tuned yet. “Tune” tries the engine's settings on this machine." : "Its server's settings aren't ours to tune."}</p>`}
    <h2>Evaluations</h2><${Evaluations} name=${name} />
    ${about && about.template && html`<details><summary><h2>Chat template</h2></summary>
      <pre class="boxed" tabindex="0">${about.template}</pre></details>`}
    ${engine && html`<h2>Log</h2><${Log} name=${name} />`}`;
}
