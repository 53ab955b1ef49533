'use strict';
const D = JSON.parse(document.getElementById('data').textContent);
const runs = D.runs.map((run, i) => ({...run, i, color: `var(--run${i % 6})`, shown: true}));
const KIND_COLORS = ['--good', '--swap', '--shift', '--mixed', '--twice', '--bad'];
const OUTCOME_COLORS = ['--good', '--swap', '--shift', '--bad'];
const KIND_NAMES = {bbox: 'boxes', segm: 'masks'};
const NAV = {figures: 'COCO', classes: 'Classes', precision: 'Precision', confusion: 'Confusion', errors: 'Errors', images: 'Images', inside: 'Inside'};
const redraws = [];

// --- elements -------------------------------------------------------------
function make(tag, attrs = {}, ...children) {
  const svgTags = ['svg', 'path', 'line', 'text', 'g', 'rect', 'circle', 'polygon', 'title'];
  const el = svgTags.includes(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag)
    : document.createElement(tag);
  for (const [key, value] of Object.entries(attrs)) {
    if (key.startsWith('on')) el.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) el.setAttribute(key, value === true ? '' : value);
  }
  el.append(...children.flat().filter(child => child !== null && child !== undefined));
  return el;
}
const escaped = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
const percent = (value, digits = 1) => value === null || value === undefined || value < 0 ? '–' : (100 * value).toFixed(digits);
const shownRuns = () => runs.filter(run => run.shown);

const tip = document.getElementById('tip');
function showTip(html, x, y) {
  tip.innerHTML = html;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${Math.max(4, y + box.height + 20 > innerHeight ? y - box.height - 12 : y + 14)}px`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener('scroll', hideTip, {passive: true});

function section(id, title, note, ...children) {
  document.getElementById('nav').append(make('a', {href: `#${id}`}, NAV[id] || title));
  const card = make('section', {class: 'card', id}, make('h2', {}, title), make('p', {class: 'muted'}, note), ...children);
  document.getElementById('main').append(card);
  return card;
}
function select(label, options, onchange, value) {
  const box = make('select', {onchange: () => onchange(box.value), 'aria-label': label},
    options.map(([key, text]) => make('option', {value: key, selected: String(key) === String(value)}, text)));
  return make('label', {}, label, box);
}
// Draw now, and again when the width or the shown runs change.
function live(draw) {
  const el = make('div', {class: 'chart'});
  let width = 0;
  const redraw = () => { if (width) el.replaceChildren(...[draw(width)].flat()); };
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now && now !== width) { width = now; requestAnimationFrame(redraw); }
  }).observe(el);
  redraws.push(redraw);
  el.redraw = redraw;
  return el;
}

// --- charts ---------------------------------------------------------------
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find(n => n * power >= rough) * power;
  const found = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-6; t += step) found.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return found;
}
function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  if (size && size < 1e-3) return value.toExponential(0);
  return String(+value.toPrecision(3));
}
// series: [{name, color, points: [[x, y], ...]}]
function lineChart(width, {series, xLabel, format = shortNumber, low, high, xRange, dots = false}) {
  const height = Math.round(Math.min(260, Math.max(190, width * .5)));
  const left = 46, right = 10, top = 10, bottom = 34;
  const points = series.flatMap(s => s.points).filter(p => p[1] !== null);
  const svg = make('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': `Curves over ${xLabel}`});
  if (!points.length) {
    svg.append(make('text', {x: width / 2, y: height / 2, 'text-anchor': 'middle'}, 'no values'));
    return svg;
  }
  const xs = points.map(p => p[0]), ys = points.map(p => p[1]).sort((a, b) => a - b);
  // A few first values far above the rest would flatten everything else.
  const cut = ys[Math.floor(.98 * (ys.length - 1))];
  let x0 = xRange ? xRange[0] : Math.min(...xs), x1 = xRange ? xRange[1] : Math.max(...xs);
  if (x0 === x1) { x0 -= .5; x1 += .5; }
  let y0 = low ?? ys[0], y1 = high ?? Math.min(ys[ys.length - 1], cut * 1.6 || ys[ys.length - 1]);
  if (y0 === y1) { y0 -= .5; y1 += .5; }
  y1 += high === undefined ? (y1 - y0) * .05 : 0;
  const px = x => left + (x - x0) / (x1 - x0) * (width - left - right);
  const py = y => top + (1 - (Math.min(y, y1) - y0) / (y1 - y0)) * (height - top - bottom);
  for (const t of ticks(y0, y1, 4)) {
    svg.append(make('line', {x1: left, x2: width - right, y1: py(t), y2: py(t), stroke: 'var(--line)'}),
      make('text', {x: left - 7, y: py(t) + 4, 'text-anchor': 'end'}, format(t)));
  }
  for (const t of ticks(x0, x1, Math.max(3, Math.min(8, width / 80)))) {
    svg.append(make('text', {x: px(t), y: height - bottom + 17, 'text-anchor': 'middle'}, shortNumber(t)));
  }
  svg.append(make('text', {x: (left + width - right) / 2, y: height - 3, 'text-anchor': 'middle'}, xLabel));
  for (const s of series) {
    const path = s.points.filter(p => p[1] !== null).map((p, i) => `${i ? 'L' : 'M'}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}`).join('');
    svg.append(make('path', {d: path, fill: 'none', stroke: s.color, 'stroke-width': 2, 'stroke-linejoin': 'round'}));
    if (dots || s.points.length === 1) {
      for (const p of s.points) svg.append(make('circle', {cx: px(p[0]), cy: py(p[1]), r: 3, fill: s.color}));
    }
  }
  const cursor = make('line', {y1: top, y2: height - bottom, stroke: 'var(--muted)', 'stroke-dasharray': '3 3', visibility: 'hidden'});
  svg.append(cursor);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const x = x0 + ((event.clientX - box.left) * width / box.width - left) / (width - left - right) * (x1 - x0);
    const near = series.filter(s => s.points.length).map(s => [s, s.points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)]);
    if (!near.length) return;
    const at = near[0][1][0];
    cursor.setAttribute('x1', px(at));
    cursor.setAttribute('x2', px(at));
    cursor.setAttribute('visibility', 'visible');
    showTip(`${escaped(xLabel)} ${shortNumber(at)}<br>` + near.map(([s, p]) =>
      `<i style="background:${s.color}"></i>${escaped(s.name)}: <b>${p[1] === null ? '–' : format(p[1], true)}</b>`).join('<br>'),
      event.clientX, event.clientY);
  });
  svg.addEventListener('pointerleave', () => { hideTip(); cursor.setAttribute('visibility', 'hidden'); });
  return svg;
}
function curveChart(name, xLabel, options = {}) {
  return live(width => lineChart(width, {xLabel, ...options, series: shownRuns().filter(run => run.curves[name])
    .map(run => ({name: run.name, color: run.color, points: run.curves[name]}))}));
}
function stackedBar(counts, names, colors) {
  const total = counts.reduce((a, b) => a + b, 0);
  return make('div', {class: 'stack'}, counts.map((count, i) => count ? make('i', {
    style: `width:${100 * count / total}%;background:var(${colors[i]})`,
    onpointermove: event => showTip(`${names[i]}: <b>${count.toLocaleString()}</b> (${percent(count / total)}%)`, event.clientX, event.clientY),
    onpointerleave: hideTip}) : null));
}
const key = (names, colors) => make('div', {class: 'key'}, names.map((name, i) =>
  make('span', {}, make('i', {style: `background:var(${colors[i]})`}), name)));

// --- header ---------------------------------------------------------------
document.getElementById('subtitle').textContent =
  `${runs.length === 1 ? runs[0].name : `${runs.length} runs`}${D.data ? ` · ${D.data.images.toLocaleString()} validation images` : ''} · ${D.created}`;
document.getElementById('footer').textContent = `Written by mmrla ${D.version} on ${D.created}.`;
document.getElementById('legend').append(...runs.map(run => {
  const chip = make('button', {class: 'chip', type: 'button', 'aria-pressed': 'true', title: 'Show or hide this run'},
    make('i', {style: `background:${run.color}`}), run.name);
  chip.addEventListener('click', () => {
    run.shown = !run.shown;
    if (!shownRuns().length) run.shown = true;
    chip.setAttribute('aria-pressed', run.shown);
    redraws.forEach(redraw => redraw());
  });
  return chip;
}));
// report.html?theme=dark opens it in dark.
const wanted = new URLSearchParams(location.search).get('theme');
if (wanted === 'dark' || wanted === 'light') document.documentElement.dataset.theme = wanted;
document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
});

// --- overview -------------------------------------------------------------
function headline(run) {
  const figures = D.figures && D.figures.values[run.i];
  const kind = figures && (figures.bbox ? 'bbox' : Object.keys(figures)[0]);
  if (kind) return [percent(figures[kind][0]), `AP of ${KIND_NAMES[kind]}, ${percent(figures[kind][1])} at IoU 0.5`];
  const name = Object.keys(run.curves).find(key => /mAP$|top1$/.test(key));
  if (name) {
    const last = run.curves[name][run.curves[name].length - 1][1];
    return [/top1/.test(name) ? last.toFixed(1) : percent(last), name];
  }
  const loss = run.curves.loss;
  return loss ? [loss[loss.length - 1][1].toFixed(3), 'last training loss'] : ['–', ''];
}
{
  const facts = [...new Set(runs.flatMap(run => Object.keys(run.facts)))];
  section('overview', 'Overview', 'What was run, and from what.',
    make('div', {class: 'tiles'}, runs.map(run => {
      const [value, what] = headline(run);
      return make('div', {class: 'tile', style: `--c:${run.color}`}, make('div', {class: 'muted'}, run.name),
        make('b', {}, value), make('span', {class: 'muted'}, what));
    })),
    make('div', {class: 'scroll'}, make('table', {},
      make('thead', {}, make('tr', {}, make('th', {}, ''), runs.map(run => make('th', {class: 'text'}, run.name)))),
      make('tbody', {}, facts.map(fact => make('tr', {}, make('td', {class: 'muted'}, fact),
        runs.map(run => make('td', {class: 'text'}, run.facts[fact] || '–'))))))),
    (D.notes || []).map((note, i) => note ? make('p', {class: 'muted'}, `${runs[i].name}: ${note}.`) : null));
}

// --- curves ---------------------------------------------------------------
{
  const names = [...new Set(runs.flatMap(run => Object.keys(run.curves)))];
  const losses = names.filter(name => name.includes('loss'));
  const metrics = names.filter(name => name.includes('/'));
  const card = section('curves', 'Curves', 'Training by iteration, validation by epoch. Touch or point at a curve for its values.');
  const grid = make('div', {class: 'grid two'});
  card.append(grid);
  if (losses.length) {
    let name = losses.includes('loss') ? 'loss' : losses[0];
    const chart = live(width => lineChart(width, {xLabel: 'iteration', series: shownRuns().filter(run => run.curves[name])
      .map(run => ({name: run.name, color: run.color, points: run.curves[name]}))}));
    grid.append(make('div', {}, make('div', {class: 'controls'}, select('Training', losses.map(n => [n, n]),
      value => { name = value; chart.redraw(); }, name)), chart));
  }
  if (metrics.length) {
    let name = metrics.find(n => /bbox_mAP$/.test(n)) || metrics[0];
    const chart = live(width => lineChart(width, {xLabel: 'epoch', dots: true, low: 0,
      format: (v, exact) => /mAP|AR/.test(name) ? (100 * v).toFixed(exact ? 1 : 0) : shortNumber(v),
      series: shownRuns().filter(run => run.curves[name])
        .map(run => ({name: run.name, color: run.color, points: run.curves[name].filter(p => p[1] >= 0)}))}));
    grid.append(make('div', {}, make('div', {class: 'controls'}, select('Validation', metrics.map(n => [n, n]),
      value => { name = value; chart.redraw(); }, name)), chart));
  }
  if (names.includes('lr')) grid.append(make('div', {}, make('h3', {}, 'Learning rate'), curveChart('lr', 'iteration', {low: 0})));
  if (names.includes('grad_norm')) grid.append(make('div', {}, make('h3', {}, 'Gradient norm'), curveChart('grad_norm', 'iteration', {low: 0})));
}

// --- COCO's figures -------------------------------------------------------
if (D.figures && D.figures.values.some(Boolean)) {
  const kinds = [...new Set(D.figures.values.filter(Boolean).flatMap(Object.keys))];
  const tableOf = (kind, start) => make('table', {}, make('thead', {}, make('tr', {}, make('th', {}, kinds.length > 1 ? KIND_NAMES[kind] : ''),
    runs.map(run => make('th', {}, run.name)))), make('tbody', {}, D.figures.names.slice(start, start + 6).map((name, offset) => {
    const values = D.figures.values.map(v => v && v[kind] ? v[kind][start + offset] : null);
    const best = Math.max(...values.map(v => v ?? -1));
    return make('tr', {}, make('td', {}, name), values.map((value, i) => {
      const first = values[0];
      const delta = i && value !== null && value >= 0 && first !== null && first >= 0 ? 100 * (value - first) : null;
      return make('td', {class: runs.length > 1 && value === best && value >= 0 ? 'best' : ''}, percent(value),
        delta === null ? null : make('span', {class: `delta ${delta > .05 ? 'up' : delta < -.05 ? 'down' : ''}`},
          `${delta >= 0 ? '+' : '−'}${Math.abs(delta).toFixed(1)}`));
    }));
  })));
  section('figures', 'COCO figures', `In percent${runs.length > 1 ? ', with the difference to the first run' : ''}. AP is the mean over IoU 0.5 to 0.95; AR is recall for at most 1, 10 and 100 detections per image. "–" means that there is no such object.`,
    make('div', {class: 'grid two'}, kinds.flatMap(kind => [0, 6].map(start => make('div', {class: 'scroll'}, tableOf(kind, start))))));
}

// --- classes --------------------------------------------------------------
if (D.per_class && D.per_class.some(Boolean)) {
  const kinds = [...new Set(D.per_class.filter(Boolean).flatMap(Object.keys))];
  let kind = kinds[0], order = 'objects', down = true;
  const holder = make('div', {class: 'scroll'});
  const value = (run, k) => D.per_class[run.i] && D.per_class[run.i][kind] ? D.per_class[run.i][kind][k] : null;
  const draw = () => {
    const rows = D.classes.map((name, k) => ({name, k, objects: D.counts[k], values: runs.map(run => value(run, k))}));
    const pick = row => order === 'name' ? row.name : order === 'objects' ? row.objects : row.values[order] ?? -1;
    rows.sort((a, b) => (pick(a) < pick(b) ? -1 : pick(a) > pick(b) ? 1 : 0) * (down ? -1 : 1));
    const head = (text, field) => make('th', {}, make('button', {type: 'button', onclick: () => {
      down = order === field ? !down : field !== 'name'; order = field; draw();
    }}, `${text}${order === field ? (down ? ' ↓' : ' ↑') : ''}`));
    holder.replaceChildren(make('table', {}, make('thead', {}, make('tr', {}, head('class', 'name'), head('objects', 'objects'),
      runs.map(run => head(run.name, run.i)))), make('tbody', {}, rows.map(row => make('tr', {}, make('td', {}, row.name),
      make('td', {}, row.objects.toLocaleString()), row.values.map((v, i) => make('td', {},
        make('span', {class: 'meter'}, make('i', {style: `width:${100 * (v || 0)}%;background:${runs[i].color}`})), percent(v))))))));
  };
  draw();
  section('classes', 'AP per class', 'Select a heading to sort by it.',
    kinds.length > 1 ? make('div', {class: 'controls'}, select('Of', kinds.map(k => [k, KIND_NAMES[k]]), v => { kind = v; draw(); }, kind)) : null, holder);
}

// --- precision and recall -------------------------------------------------
if (D.precision && D.precision.some(Boolean)) {
  const kinds = [...new Set(D.precision.filter(Boolean).flatMap(Object.keys))];
  let kind = kinds[0], iou = 0, label = 0;
  const chart = live(width => lineChart(width, {xLabel: 'recall', low: 0, high: 1, xRange: [0, 1],
    format: (v, exact) => exact ? v.toFixed(3) : String(+v.toFixed(2)),
    series: shownRuns().filter(run => D.precision[run.i] && D.precision[run.i][kind]).map(run => ({name: run.name, color: run.color,
      points: D.precision[run.i][kind][iou][label].map((v, i) => [i / 100, v < 0 ? null : v / 1000])}))}));
  section('precision', 'Precision and recall', 'Precision at each recall, as COCO interpolates it.',
    make('div', {class: 'controls'},
      select('Class', [['0', 'mean of all'], ...D.classes.map((name, i) => [i + 1, name])], v => { label = +v; chart.redraw(); }, 0),
      select('IoU', [['0', '0.5'], ['1', '0.75'], ['2', 'mean of 0.5 to 0.95']], v => { iou = +v; chart.redraw(); }, 0),
      kinds.length > 1 ? select('Of', kinds.map(k => [k, KIND_NAMES[k]]), v => { kind = v; chart.redraw(); }, kind) : null),
    make('div', {style: 'max-width:760px'}, chart));
}

// --- confusion ------------------------------------------------------------
if (D.confusion && D.confusion.some(Boolean)) {
  let current = runs.find(run => D.confusion[run.i]);
  const names = [...D.classes, 'no object'], heads = [...D.classes, 'not found'];
  const chart = live(width => {
    const matrix = D.confusion[current.i], n = names.length, small = n > 24;
    const longest = Math.max(...heads.map(name => name.length));
    const left = small ? (width > 700 ? 92 : 8) : Math.min(width * .3, 14 + 6.4 * longest);
    const cell = Math.min(56, (width - left - 6) / n), top = small ? 12 : Math.min(110, 20 + 5 * longest);
    const size = cell * n, height = top + size + 24;
    const svg = make('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': 'Confusion matrix'});
    names.forEach((name, i) => {
      const at = i * cell + cell / 2;
      if (left > 20 && (cell > 8 || !small)) svg.append(make('text', {x: left - 6, y: top + at + 4, 'text-anchor': 'end', style: small ? 'font-size:8px' : ''}, name));
      if (!small) svg.append(make('text', {x: 0, y: 0, transform: `translate(${left + at + 4} ${top - 6}) rotate(-45)`}, heads[i]));
    });
    svg.append(make('rect', {x: left, y: top, width: size, height: size, fill: 'var(--soft)'}));
    matrix.forEach((row, i) => {
      const total = row.reduce((a, b) => a + b, 0);
      row.forEach((count, j) => {
        if (!count) return;
        const share = count / total;
        const rect = make('rect', {x: left + j * cell + .5, y: top + i * cell + .5, width: Math.max(1, cell - 1), height: Math.max(1, cell - 1),
          fill: `rgba(var(--heat), ${(.07 + .93 * Math.sqrt(share)).toFixed(3)})`, rx: cell > 12 ? 3 : 0});
        rect.addEventListener('pointermove', event => showTip(
          `${i < n - 1 ? `truth: <b>${escaped(names[i])}</b>` : 'no object there'}<br>${j < n - 1 ? `found: <b>${escaped(names[j])}</b>` : 'not found'}<br>${count.toLocaleString()} (${percent(share)}% of the row)`,
          event.clientX, event.clientY));
        rect.addEventListener('pointerleave', hideTip);
        svg.append(rect);
        if (cell >= 26) svg.append(make('text', {x: left + j * cell + cell / 2, y: top + i * cell + cell / 2 + 4, 'text-anchor': 'middle',
          style: `pointer-events:none;fill:${share > .35 ? 'var(--card)' : 'var(--text)'}`}, shortNumber(count)));
      });
    });
    svg.append(make('text', {x: left, y: top + size + 17}, 'rows: truth · columns: found as'));
    return svg;
  });
  const able = runs.filter(run => D.confusion[run.i]);
  section('confusion', 'Confusion matrix', `Detections with a score of ${D.score} or more, matched at IoU 0.5. The last column has objects that were not found, the last row detections where there is no object.`,
    able.length > 1 ? make('div', {class: 'controls'}, select('Run', able.map(run => [run.i, run.name]), v => { current = runs[v]; chart.redraw(); }, current.i)) : null,
    make('div', {style: 'max-width:860px'}, chart));
} else if (D.figures) {
  section('confusion', 'Confusion matrix', 'The matrix needs supervision, which was not installed when this page was made: pip install supervision.');
}

// --- errors ---------------------------------------------------------------
if (D.errors && D.errors.runs.some(Boolean)) {
  const able = runs.filter(run => D.errors.runs[run.i]);
  const card = section('errors', 'Errors by kind, size and location', `Detections with a score of ${D.score} or more. Poor location: the class is right and the IoU is between 0.1 and 0.5. Small objects have fewer than 32² pixels, large ones more than 96².`);
  card.append(make('h3', {}, 'What became of the detections'), key(D.errors.kinds, KIND_COLORS),
    ...able.map(run => make('div', {class: 'row'}, make('span', {}, run.name), stackedBar(D.errors.runs[run.i].kinds, D.errors.kinds, KIND_COLORS))),
    make('h3', {style: 'margin-top:18px'}, 'What became of the objects, by size'), key(D.errors.outcomes, OUTCOME_COLORS));
  D.errors.sizes.forEach((size, s) => able.forEach(run => {
    const counts = D.errors.runs[run.i].sizes[s];
    if (counts.some(Boolean)) card.append(make('div', {class: 'row'},
      make('span', {}, able.length > 1 ? `${size} · ${run.name}` : size), stackedBar(counts, D.errors.outcomes, OUTCOME_COLORS)));
  }));
  const places = D.errors.location.find(item => item && Object.keys(item).length);
  if (places) {
    card.append(make('h3', {style: 'margin-top:18px'}, 'How correct boxes are shifted and scaled'),
      make('p', {class: 'muted'}, 'Shares of the object’s width or height. A curve that is not centred on 0 is a systematic error.'),
      make('div', {class: 'grid four'}, Object.keys(places).map(name => {
        const medians = able.filter(run => D.errors.location[run.i][name]).map(run => `${percent(Math.abs(D.errors.location[run.i][name].median))}%`);
        return make('div', {}, make('h3', {}, name), live(width => lineChart(width, {xLabel: '% of the object', low: 0, xRange: [-50, 50],
          format: v => `${(100 * v).toFixed(0)}%`,
          series: shownRuns().filter(run => D.errors.location[run.i] && D.errors.location[run.i][name]).map(run => {
            const share = D.errors.location[run.i][name].share, step = 100 / share.length;
            return {name: run.name, color: run.color, points: share.map((v, i) => [-50 + step * (i + .5), v])};
          })})), make('p', {class: 'muted'}, `median ${medians.join(', ')} off`));
      })));
  }
}

// --- images ---------------------------------------------------------------
if (D.images && D.images.length) {
  const able = runs.filter(run => D.images.some(image => image.badness[run.i] !== null));
  let current = able[0], order = 'worst', least = D.score, count = 12;
  const holder = make('div', {class: 'images'});
  const layer = (image, boxes, colors, limit, labels) => {
    const unit = Math.max(image.width, image.height);
    const svg = make('svg', {viewBox: `0 0 ${image.width} ${image.height}`, preserveAspectRatio: 'none'});
    let written = 0;
    for (const [x, y, w, h, label, mark, score, polygons] of boxes) {
      if (score < limit) continue;
      const color = `var(${colors[mark]})`;
      for (const polygon of polygons) svg.append(make('polygon', {points: polygon.join(' '), fill: color, 'fill-opacity': .3, stroke: 'none'}));
      svg.append(make('rect', {x, y, width: Math.max(w, 0), height: Math.max(h, 0), fill: 'none', stroke: color, 'stroke-width': unit / 110}));
      if (written++ >= labels) continue;
      const size = unit / 22, text = D.classes[label] + (score < 1 ? ` ${Math.round(100 * score)}` : '');
      const ty = y > size * 1.2 ? y - size * .25 : y + size * .95;
      svg.append(make('text', {x: x + unit / 200, y: ty, style: `font-size:${size}px;fill:#fff;paint-order:stroke;stroke:rgba(0,0,0,.75);stroke-width:${size / 5}px;stroke-linejoin:round`}, text));
    }
    return svg;
  };
  const pair = (image, labels) => make('div', {class: 'pair'},
    make('div', {}, make('img', {src: image.image, alt: `${image.name}, truth`, loading: 'lazy'}),
      layer(image, image.truth[current.i], OUTCOME_COLORS, 0, labels), make('em', {}, 'truth')),
    make('div', {}, make('img', {src: image.image, alt: `${image.name}, found`, loading: 'lazy'}),
      layer(image, image.found[current.i], KIND_COLORS, least, labels), make('em', {}, 'found')));
  const zoom = document.getElementById('zoom');
  zoom.querySelector('.close').addEventListener('click', () => zoom.close());
  zoom.addEventListener('click', event => { if (event.target === zoom) zoom.close(); });
  const orders = {
    worst: (a, b) => b.badness[current.i] - a.badness[current.i], best: (a, b) => a.badness[current.i] - b.badness[current.i],
    missed: (a, b) => missed(b) - missed(a), wrong: (a, b) => wrong(b) - wrong(a), name: (a, b) => a.name < b.name ? -1 : 1,
    differ: (a, b) => spread(b) - spread(a)};
  const missed = image => image.truth[current.i].filter(box => box[5] === OUTCOME_COLORS.length - 1).length;
  const wrong = image => image.found[current.i].filter(box => box[5] > 0 && box[6] >= least).length;
  const spread = image => { const all = image.badness.filter(v => v !== null); return Math.max(...all) - Math.min(...all); };
  const more = make('button', {class: 'chip', type: 'button', style: 'margin-top:14px', onclick: () => { count += 24; draw(); }}, 'Show more');
  function draw() {
    const images = [...D.images].sort(orders[order]);
    holder.replaceChildren(...images.slice(0, count).map(image => make('figure', {tabindex: 0, onclick: () => {
      zoom.querySelector('div').replaceChildren(make('h3', {}, image.name), pair(image, Infinity));
      zoom.showModal();
    }, onkeydown: event => { if (event.key === 'Enter') event.currentTarget.click(); }}, pair(image, 4), make('figcaption', {},
      make('span', {title: image.name}, image.name),
      make('span', {class: 'muted'}, `${percent(image.badness[current.i], 0)}% error · ${missed(image)} missed · ${wrong(image)} wrong`)))));
    more.hidden = count >= D.images.length;
  }
  const shown = make('span', {}, String(least));
  const slider = make('input', {type: 'range', min: D.score, max: 1, step: .05, value: least, 'aria-label': 'Least score', oninput: () => {
    least = +slider.value; shown.textContent = least.toFixed(2); draw();
  }});
  draw();
  section('images', 'Validation images', `Truth on the left, found on the right; ${D.images.length} of ${D.data.images.toLocaleString()} images, half of them the worst. The error is 1 − F1 at IoU 0.5. Select an image to enlarge it.`,
    make('div', {class: 'controls'},
      able.length > 1 ? select('Run', able.map(run => [run.i, run.name]), v => { current = runs[v]; draw(); }, current.i) : null,
      select('Sort by', [['worst', 'worst first'], ['best', 'best first'], ['missed', 'most missed'], ['wrong', 'most wrong'],
        ...(able.length > 1 ? [['differ', 'most different between runs']] : []), ['name', 'name']], v => { order = v; draw(); }, order),
      make('label', {}, 'Score from', slider, shown)),
    make('div', {class: 'keys'}, make('b', {}, 'Truth'), key(D.errors.outcomes, OUTCOME_COLORS), make('b', {}, 'Found'), key(D.errors.kinds, KIND_COLORS)),
    holder, more);
}

// --- hidden state ---------------------------------------------------------
if (D.inside && D.inside.length) {
  section('inside', 'Inside the network', `The hidden state of ${D.inside[0].run} along its depth, one column per block. A map is the mean of the absolute values over channels, scaled to its own largest value. "h not read" is the same network with a hidden state of zero at every block's input. The bars are the share of each block's first convolution that reads h (L1 norm of its weights); the line is the share if all input channels were read equally.`,
    ...D.inside.map(item => {
      const highest = Math.max(...item.shares.flat().filter(v => v !== null), 1e-6);
      return make('div', {class: 'inside', style: `grid-template-columns:minmax(70px,120px) repeat(${item.blocks.length},minmax(44px,1fr))`},
        make('div', {class: 'photo'}, make('img', {src: item.image, alt: item.name})), item.blocks.map(block => make('div', {class: 'top head'}, String(block))),
        item.rows.flatMap(row => [make('div', {class: 'name'}, row.name), ...row.maps.map((map, i) => map
          ? make('img', {src: map, alt: `${row.name}, block ${item.blocks[i]}`}) : make('div', {class: 'top'}, 'none'))]),
        make('div', {class: 'name'}, 'weights that read h'), item.shares.map(([share, even]) => make('div', {class: 'bars',
          onpointermove: event => share === null ? null : showTip(`${percent(share)}% read h; ${percent(even)}% if all were equal`, event.clientX, event.clientY), onpointerleave: hideTip},
          share === null ? make('span', {class: 'top', style: 'margin:auto'}, '–') : make('i', {style: `height:${100 * share / highest}%`},
            make('i', {style: `position:absolute;left:-20%;width:140%;height:2px;background:var(--text);bottom:${100 * even / share}%;border-radius:0`})))));
    }));
}

// --- cost -----------------------------------------------------------------
if (D.cost && D.cost.some(Boolean)) {
  const ratio = (a, b) => make('span', {class: 'delta'}, `${(a / b).toFixed(3)} × plain`);
  const cell = (value, plain, text) => make('td', {}, text(value), plain ? ratio(value, plain) : null);
  const sized = D.cost.find(item => item && item.size), timed = D.cost.find(item => item && item.timed);
  section('cost', 'Cost', `The backbone beside the same backbone without RLA.${sized ? ` Multiply-adds for one image of ${sized.size.join(' × ')}.` : ''}${timed ? ` Time: one image of ${timed.timed.join(' × ')} on the CPU of the machine that made this page, the fastest of a few turns.` : ''}`,
    make('div', {class: 'scroll'}, make('table', {}, make('thead', {}, make('tr', {}, make('th', {}, ''), make('th', {}, 'whole model'),
      make('th', {}, 'backbone'), make('th', {}, 'multiply-adds'), make('th', {}, 'time'))),
    make('tbody', {}, runs.map(run => {
      const item = D.cost[run.i];
      if (!item || item.problem) return make('tr', {}, make('td', {}, run.name), make('td', {colspan: 4, class: 'text muted'}, item ? `not built here: ${item.problem}` : '–'));
      const plain = item.plain || {};
      return make('tr', {}, make('td', {}, run.name), make('td', {}, `${(item.detector / 1e6).toFixed(2)} M`),
        cell(item.parameters, plain.parameters, v => `${(v / 1e6).toFixed(2)} M`),
        cell(item.flops, plain.flops, v => `${(v / 1e9).toFixed(2)} G`),
        item.seconds ? cell(item.seconds, plain.seconds, v => `${(1000 * v).toFixed(0)} ms`) : make('td', {class: 'muted'}, 'plain'));
    })))));
}

// --- configs --------------------------------------------------------------
section('config', 'Configs', runs.length > 1 ? (D.differences.length ? 'The settings that differ.' : 'The configs of all runs are the same.') : 'All settings of the run.',
  D.differences.length ? make('div', {class: 'scroll'}, make('table', {}, make('thead', {}, make('tr', {}, make('th', {class: 'text'}, 'setting'),
    runs.map(run => make('th', {class: 'text'}, run.name)))), make('tbody', {}, D.differences.map(row => make('tr', {},
    make('td', {class: 'text'}, make('code', {}, row.name)), row.values.map(value => make('td', {class: 'text'}, make('code', {}, value)))))))) : null,
  ...runs.map(run => make('details', {}, make('summary', {}, `The config of ${run.name}`), make('pre', {}, D.configs[run.i]))));
