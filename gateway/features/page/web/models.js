// Models: which there are and how they fare, the hub, and downloads; one of them is opened by `model.js`.
import {html, useState} from "./preact.js";
import {Lazy, Problem, Table, ask, bytes, count, href, useAnswer, useGateway} from "./base.js";
import {Board} from "./jobs.js";
import {Search} from "./hub.js";

const STATES = {ready: "good", failed: "bad", starting: "busy", draining: "busy", stopping: "busy"};
const TOLD = {external: "external server", "built in": "built in", stopped: "not loaded", starting: "loading",
  draining: "finishing its answers", stopping: "stopping"};

export function State({model, listed}) {
  if (listed && !listed.available) return html`<span class="badge">not here</span>`;
  return html`<span class="badge ${STATES[model.state] || ""}">${TOLD[model.state] || model.state}</span>`;
}

export function speedOf(requests, name) {
  let tokens = 0, time = 0;
  for (const entry of requests) {
    if (entry.model !== name || !entry.first_seconds || entry.completion_tokens < 2) continue;
    tokens += entry.completion_tokens;
    time += entry.seconds - entry.first_seconds;
  }
  return time > 0 ? (tokens / time).toFixed(tokens / time < 10 ? 1 : 0) : "–";
}

export function LoadButton({model, listed, done}) {
  const [busy, work] = useState(false);
  if (!model.engine || (listed && !listed.available)) return null;
  const stop = ["ready", "starting", "draining"].includes(model.state);
  const press = async () => {
    work(true);
    try {
      await ask(`/v1/models/${encodeURIComponent(model.name)}/${stop ? "unload" : "load"}`, {method: "POST"});
      done(null);
    } catch (error) {
      done(error);
    }
    work(false);
  };
  return html`<button class="small" disabled=${busy} onClick=${press} aria-label=${`${stop ? "Unload" : "Load"} ${model.name}`}>
    ${busy ? (stop ? "unloads …" : "loads …") : stop ? "Unload" : "Load"}</button>`;
}

// Of all that wait: who, by service tier, and which are answers that gave way in the middle.
export function waitingLine({waiting, waiting_tiers: tiers, put_aside: aside}) {
  const found = Object.entries(tiers).filter(([, number]) => number > 0).map(([tier, number]) => `${number} ${tier}`);
  return `${waiting} waiting: ${found.join(", ")}${aside > 0 ? ` (${aside} put aside)` : ""}`;
}

function Row({model, listed, gateway, done}) {
  const good = model.outcomes.ok || 0, left = model.outcomes.client_left || 0;
  const bad = model.requests - good - left;
  const {engine} = model;
  return html`<tr>
    <td><a href=${href("models", {id: model.name})}>${model.name}</a>
      ${model.active && html`${" "}<span class="badge">default</span>`}</td>
    <td><${State} model=${model} listed=${listed} />${" "}${model.waiting > 0 && waitingLine(model)}
      ${model.in_flight > 0 && html`${" "}<a href=${href("live", {model: model.name})}>${model.in_flight} in flight</a>`}</td>
    <td class="number">${engine ? bytes(engine.resident_bytes) : "–"}</td>
    <td class="number">${listed && listed.context_window ? count(listed.context_window) : "–"}</td>
    <td>${listed ? listed.tool_call_format : ""}</td>
    <td class="number">${speedOf(gateway.requests, model.name)}</td>
    <td class="number">${count(good)}</td>
    <td class="number">${bad ? html`<a class="bad" href=${href("live", {model: model.name, outcome: "failed"})}>${count(bad)}</a>` : 0}</td>
    <td class="stays"><${LoadButton} model=${model} listed=${listed} done=${done} /></td>
  </tr>`;
}

const NODES = [["Machine"], ["Address"], ["State"], ["CPUs", "number"], ["Memory free", "number"],
  ["GPU memory free", "number"], ["Engines"], ["Labels"]];
const free = (used, total) => `${bytes(Math.max(0, total - used))} of ${bytes(total)}`;

function Node({node}) {
  const {alive} = node;
  return html`<tr>
    <td>${node.host} <span class="soft">${node.id.slice(0, 8)}</span></td><td>${node.address}</td>
    <td><span class="badge ${alive ? "good" : "bad"}">${alive ? "alive" : "gone"}</span></td>
    <td class="number">${node.cpus}</td>
    <td class="number">${alive ? free(node.used, node.memory) : "–"}</td>
    <td class="number">${alive && node.gpu_memory ? free(node.gpu_used, node.gpu_memory) : "–"}</td>
    <td>${node.engines.join(", ")}</td>
    <td>${Object.entries(node.labels).map(([name, value]) => `${name}=${value}`).join(", ")}</td>
  </tr>`;
}

function Machines({cluster}) {
  return html`<h2>Machines</h2>
    ${!cluster.store && html`<p class="problem">PostgreSQL is down: chats continue, requests that need state get 503.</p>`}
    ${!cluster.ray && html`<p class="problem">Ray is down: running engines keep working, no others start.</p>`}
    <${Table} label="Machines" heads=${NODES}>
      ${cluster.nodes.map((node) => html`<${Node} key=${node.id} node=${node} />`)}
    </${Table}>
    <p class="soft small">Gateways: ${cluster.gateways.join(", ")}</p>`;
}

const HEADS = [["Model"], ["State"], ["Memory", "number"], ["Context", "number", "Tokens of prompt and answer together"],
  ["Format", "", "How the model writes tool calls"], ["Tokens/s", "number", "Of the last requests"], ["OK", "number"],
  ["Failed", "number"], [html`<span class="unseen">Load or unload</span>`]];

function List({gateway, listed, fail}) {
  const {status} = gateway, {prompts} = status;
  return html`<${Table} label="Models" heads=${HEADS}>
      ${status.models.map((model) => html`<${Row} key=${model.name} model=${model} listed=${listed[model.name]}
        gateway=${gateway} done=${fail} />`)}
    </${Table}>
    ${status.cluster && html`<${Machines} cluster=${status.cluster} />`}
    ${status.leaving.length > 0 && html`<p>${status.leaving.map((one) => one.name).join(", ")}: an earlier engine ends its
      last answers.</p>`}
    <p class="soft small">A request for a model that isn't loaded loads it. Configured in <code>${status.config.file}</code>.
      ${prompts.saved > 0 && html`${" "}Saved prompts: ${prompts.saved}, ${bytes(prompts.bytes)}.`}</p>`;
}

export default function Models({query}) {
  const gateway = useGateway();
  const [error, fail] = useState(null);
  const {value} = useAnswer("/v1/models?all=true", 10);
  const {status} = gateway;
  const {id, find, repo} = query;
  if (!status) return html`<h1>Models</h1><p class="soft late">Connecting …</p>`;
  const listed = Object.fromEntries(((value && value.data) || []).map((one) => [one.id, one]));
  const problem = error && html`<${Problem} error=${error} />`;
  if (id) return html`${problem}<${Lazy} from="./model.js" name=${id} gateway=${gateway} listed=${listed[id]} fail=${fail} key=${id} />`;
  return html`<h1>Models</h1>${problem}
    <${Search} words=${(find || "").trim()} key=${find} />
    <${Board} fail=${fail} />
    ${find || repo ? html`<${Lazy} from="./hub.js" find=${find || ""} repo=${repo} fail=${fail} />`
      : html`<${List} gateway=${gateway} listed=${listed} fail=${fail} />`}`;
}
