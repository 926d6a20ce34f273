"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const PAGE = 25;

const records = (table) =>
  table.rows.map((row) => Object.fromEntries(row.map((cell, i) => [table.columns[i], cell])));

const compare = (a, b) => {
  if (a === b) return 0;
  if (a === null || a === "") return 1;
  if (b === null || b === "") return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
};

const show = (cell) =>
  typeof cell === "number" ? cell.toLocaleString("en", { maximumSignificantDigits: 6 })
  : cell === true ? "yes" : cell === false ? "no" : cell ?? "";

const element = (tag, parent, text) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
};

/* A table of any length: a filter per column, sorting, and pages of PAGE rows. */
function bigTable(place) {
  const { columns: all, rows } = DATA[place.dataset.table];
  const columns = all.slice(0, Number(place.dataset.columns ?? all.length));
  const state = { filters: columns.map(() => ""), column: -1, sign: 1, page: 0 };
  const pager = element("div", place);
  pager.className = "pager";
  const scroll = element("div", place);
  scroll.className = "scroll";
  const table = element("table", scroll);
  const head = element("tr", element("thead", table));
  const body = element("tbody", table);
  columns.forEach((name, i) => {
    const cell = element("th", head, name.replaceAll("_", " "));
    cell.dataset.sort = "";
    const input = element("input", cell);
    input.type = "search";
    input.setAttribute("aria-label", `filter ${name}`);
    input.addEventListener("click", (event) => event.stopPropagation());
    input.addEventListener("input", () => {
      state.filters[i] = input.value.toLowerCase();
      state.page = 0;
      draw();
    });
    cell.addEventListener("click", () => {
      state.sign = state.column === i ? -state.sign : 1;
      state.column = i;
      [...head.children].forEach((other) => { other.dataset.sort = ""; });
      cell.dataset.sort = state.sign > 0 ? "up" : "down";
      draw();
    });
  });
  const back = element("button", pager, "Previous");
  const count = element("span", pager);
  const next = element("button", pager, "Next");
  back.addEventListener("click", () => { state.page -= 1; draw(); });
  next.addEventListener("click", () => { state.page += 1; draw(); });
  function draw() {
    const kept = rows.filter((row) =>
      state.filters.every((text, i) => !text || String(show(row[i])).toLowerCase().includes(text)));
    if (state.column >= 0) {
      kept.sort((a, b) => state.sign * compare(a[state.column], b[state.column]));
    }
    const from = state.page * PAGE;
    const some = kept.slice(from, from + PAGE);
    body.replaceChildren();
    some.forEach((row) => {
      const line = element("tr", body);
      row.slice(0, columns.length).forEach((cell) => {
        const made = element("td", line, show(cell));
        if (typeof cell === "number") made.className = "number";
        else if (made.textContent.length > 60) made.className = "long";
      });
    });
    count.textContent = kept.length
      ? `${from + 1} to ${from + some.length} of ${kept.length}` : "none";
    back.disabled = from === 0;
    next.disabled = from + some.length >= kept.length;
    place.dataset.rows = kept.length;
  }
  draw();
}

/* Sorting for a table that is in the page already. */
function sortable(table) {
  const value = (row, i) => {
    const cell = row.children[i];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  [...table.tHead.rows[0].cells].forEach((cell, i, all) => {
    cell.addEventListener("click", () => {
      const sign = cell.dataset.sort === "up" ? -1 : 1;
      all.forEach((other) => { other.dataset.sort = ""; });
      cell.dataset.sort = sign > 0 ? "up" : "down";
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => sign * compare(value(a, i), value(b, i)));
      table.tBodies[0].append(...rows);
    });
  });
}

async function chart(id, spec) {
  const place = document.getElementById(id);
  if (!place || !spec) return;
  for (const set of spec.data) {
    if (set.name in DATA) set.values = records(DATA[set.name]);
  }
  const actions = { export: true, source: false, compiled: false, editor: false };
  const bind = document.getElementById(`${id}-controls`);
  await vegaEmbed(place, spec, { mode: "vega", renderer: "svg", actions, bind });
}

document.querySelectorAll(".big-table").forEach(bigTable);
document.querySelectorAll("table.sortable").forEach(sortable);
Promise.all([
  chart("main-chart", DATA.main_chart), chart("layer-chart", DATA.layer_chart),
  chart("heat-map", DATA.heat_map), chart("bits-chart", DATA.bits_chart),
  chart("curves", DATA.curves)])
  .then(() => { document.documentElement.dataset.ready = "yes"; });
