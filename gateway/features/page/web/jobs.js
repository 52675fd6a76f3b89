// Long work on the server: downloads and measurements, which go on while no page is open.
import {html, useEffect, useReducer} from "./preact.js";
import {ask, bytes, count, get, href, seconds} from "./base.js";

const SOON = 700, IDLE = 5000; // milliseconds between two looks, while a job runs and while none does

const board = {jobs: [], error: null, speeds: {}};
const watchers = new Set();
let timer = 0, looking = null;

async function look() {
  clearTimeout(timer);
  looking = looking || get("/-/jobs").then(take, (error) => { board.error = error; }).finally(() => { looking = null; });
  await looking;
  watchers.forEach((watcher) => watcher());
  clearTimeout(timer);
  if (watchers.size) timer = setTimeout(look, board.jobs.some((job) => job.state === "running") ? SOON : IDLE);
}

function take({jobs}) {
  for (const job of jobs) {
    const now = performance.now(), known = board.speeds[job.id];
    if (!known) board.speeds[job.id] = {from: job.done, since: now, rate: 0};
    else if (job.done > known.from) known.rate = (job.done - known.from) / ((now - known.since) / 1000);
  }
  Object.assign(board, {jobs, error: null});
}

// {jobs, error}: kept up to date for as long as somebody uses it.
export function useJobs() {
  const [, tick] = useReducer((number) => number + 1, 0);
  useEffect(() => {
    watchers.add(tick);
    look();
    return () => watchers.delete(tick);
  }, []);
  return board;
}

// Begins a job: {kind, model, suite?, minutes?}. Throws Refused.
export async function begin(json) {
  const job = await (await ask("/-/jobs", {json})).json();
  await look();
  return job;
}

const stop = (job) => ask(`/-/jobs/${job.id}`, {method: "DELETE"}).catch(() => {}).then(look);

const KINDS = {download: "Download", tune: "Tune", evaluate: "Evaluate"};
const AGAIN = {download: "Resume", tune: "Tune again", evaluate: "Evaluate again"};
const ENDS = {done: "good", failed: "bad", stopped: "", interrupted: ""};

function Progress({job}) {
  const {rate} = board.speeds[job.id] || {};
  const show = job.kind === "download" ? bytes : count;
  const left = rate > 0 && job.total ? (job.total - job.done) / rate : 0;
  const words = job.total ? [`${show(job.done)} of ${show(job.total)}`, job.kind === "download" && rate > 0 && `${bytes(rate)}/s`,
    left > 1 && `${seconds(left)} left`].filter(Boolean).join(" · ") : "begins …";
  return html`<progress max="1" value=${job.total ? Math.min(1, job.done / job.total) : undefined}
      aria-label=${`${KINDS[job.kind]} ${job.subject}`}></progress>
    <span class="soft small">${words}${job.kind !== "download" && job.said ? ` · ${job.said}` : ""}</span>`;
}

function Result({job}) {
  if (job.state !== "done") return html`<span class="small">${job.said}</span>`;
  if (job.kind === "download") return html`<a href=${href("models", {id: job.model})}>${job.model}</a>`;
  if (job.kind === "evaluate") return html`<a href=${href("evaluations", {id: job.result})}>the result</a>`;
  return html`<a href=${href("models", {id: job.subject})}>what it found</a>`;
}

export function Job({job, fail}) {
  const again = () => begin({kind: job.kind, model: job.subject}).then(() => fail(null), fail);
  const running = job.state === "running";
  return html`<li class="job">
    <b>${KINDS[job.kind]}</b> <span class="name">${job.subject}</span>
    ${!running && html`<span class="badge ${ENDS[job.state]}">${job.state}</span>`}
    <span class="push"></span>
    ${running ? html`<button class="small" onClick=${() => stop(job)} aria-label=${`Stop ${job.subject}`}>Stop</button>`
      : job.state !== "done" && html`<button class="small" onClick=${again}>${AGAIN[job.kind]}</button>`}
    <div class="how">${running ? html`<${Progress} job=${job} />` : html`<${Result} job=${job} />`}
      ${job.lines.length > 0 && html`<details><summary class="small">What it printed</summary>
        <pre class="boxed" tabindex="0">${job.lines.join("\n")}</pre></details>`}</div>
  </li>`;
}

const SHOWN = 3; // ended ones

// of: which jobs; all of them without it.
export function Board({of = () => true, fail}) {
  const {jobs} = useJobs();
  const found = jobs.filter(of);
  const running = found.filter((job) => job.state === "running");
  const ended = found.filter((job) => job.state !== "running").slice(0, SHOWN);
  if (!found.length) return null;
  return html`<ul class="jobs" aria-label="Downloads and measurements">${[...running, ...ended].map((job) => html`
    <${Job} job=${job} fail=${fail} key=${job.id} />`)}</ul>`;
}
