// Evaluations: results of model tests, each share with the interval that its number of cases allows.
import {html} from "./preact.js";
import {Code, Problem, Table, href, useAnswer} from "./base.js";

// Wilson's interval of a share, at 95 %.
function interval({k, n}) {
  const z = 1.96, p = k / n, d = 1 + (z * z) / n;
  const middle = (p + (z * z) / (2 * n)) / d, half = (z / d) * Math.sqrt((p * (1 - p)) / n + (z * z) / (4 * n * n));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

const percent = (share) => `${Math.round(100 * share)} %`;

function Share({share}) {
  if (!share || !share.n) return "–";
  const [low, high] = interval(share);
  return html`<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" role="img"
      aria-label=${`${percent(share.k / share.n)}, between ${percent(low)} and ${percent(high)}`}>
      <rect class="all" width="100" height="10" /><rect class="passed" width=${(100 * share.k) / share.n} height="10" />
      <rect class="between" x=${100 * low} y="4" width=${100 * (high - low)} height="2" /></svg>
    ${" "}${share.k}/${share.n} <span class="soft">${percent(low)} to ${percent(high)}</span>`;
}

function One({id}) {
  const {value, error} = useAnswer(`/-/evaluations/${encodeURIComponent(id)}`);
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return html`<p class="soft late">Loading …</p>`;
  const {gate, summary = {}, metrics = {}, failed} = value;
  return html`
    ${!value.complete && html`<p class="problem">The run is not complete: it has no scores.</p>`}
    ${gate && html`<p><b>${gate.verdict}</b> ${(gate.reasons || []).join("; ")}</p>`}
    <h2>By category</h2>
    <${Table} label="By category">${Object.entries(summary).map(([name, share]) => html`<tr>
      <td>${name}</td><td><${Share} share=${share} /></td></tr>`)}</${Table}>
    ${metrics.kinds && Object.keys(metrics.kinds).length > 0 && html`<h2>What went wrong</h2>
      <ul>${Object.entries(metrics.kinds).map(([kind, times]) => html`<li><code>${kind}</code> ${times}</li>`)}</ul>`}
    ${failed.length > 0 && html`<h2>Failed cases</h2>${failed.map((sample) => html`<details class="message">
      <summary><code>${sample.case}</code> ${sample.kind} <span class="soft">${sample.way}</span></summary>
      <p>${sample.detail}</p><pre class="boxed" tabindex="0">${JSON.stringify(sample.answers, null, 2)}</pre></details>`)}`}`;
}

export default function Evaluations({query}) {
  const {value, error} = useAnswer("/-/evaluations");
  const list = (value && value.evaluations) || [];
  return html`<h1>Evaluations</h1>
    ${error && html`<${Problem} error=${error} />`}
    ${list.length > 0 && html`<${Table} label="Evaluations"
      heads=${[["Run"], ["When"], ["Model"], ["Suite"], ["Passed"], ["Verdict"]]}>
      ${list.map((one) => html`<tr class=${one.id === query.id ? "chosen" : ""}>
        <td><a href=${href("evaluations", {id: one.id})}>${one.id}</a></td>
        <td>${(one.created || "").replace("T", " ").replace("Z", "")}</td><td>${one.target && one.target.model}</td>
        <td>${one.suite && one.suite.id}</td><td class="stays"><${Share} share=${one.summary && one.summary.overall} /></td>
        <td>${one.complete ? (one.gate ? one.gate.verdict : "no baseline") : "incomplete"}</td></tr>`)}</${Table}>`}
    ${value && !list.length && html`<section class="empty"><h2>No evaluation yet</h2>
      <p>A model test asks a model to call tools, some hundred times, and says how often it does so rightly. Press
        Evaluate on the page of one of the <a href="#/models">models</a>, or run one in a terminal:</p>
      <${Code} text=${`ctxgate model-test --suite smoke --base-url ${location.origin}/v1 --baseline none --out ${value.folder}/first`} />
    </section>`}
    ${query.id && html`<${One} id=${query.id} key=${query.id} />`}`;
}
