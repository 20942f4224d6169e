// The table of tasks: sorted and filtered as data, of which the first rows are in the document.

// A browser takes a second to lay out a thousand rows.
const ROWS = 100, MORE_ROWS = 500;
const HEADS = [
  ["task", "task", "text"],
  ["set", "set", "text"],
  ["n", "n", "whole"],
  ["pass_at_1", "pass@1", "number"],
  ["entropy", "entropy", "number"],
  ["multiscale", "multiscale", "number"],
  ["classes", "classes", "whole"],
  ["mst_mean", "mst_mean", "number"],
  ["pdm_mean", "pdm_mean", "number"],
  ["status", "status", "text"],
].filter(([name]) => (name !== "set" || several) && (name !== "pass_at_1" || data.labelled));
const COLLATOR = new Intl.Collator("en", { numeric: true });
const table = { by: "multiscale", descending: true, rows: ROWS, order: [], open: -1 };

function cellValue(name, task) {
  return name === "set" ? data.sets[columns.set[task]] : columns[name][task];
}

// Tasks without a value come last in both directions; equal ones keep their order.
function sorted(tasks) {
  const turn = table.descending ? -1 : 1;
  return tasks.sort((a, b) => {
    const x = cellValue(table.by, a), y = cellValue(table.by, b);
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    return turn * (typeof x === "number" ? x - y : COLLATOR.compare(x, y)) || a - b;
  });
}

function matching() {
  const wanted = document.getElementById("find").value.trim().toLowerCase();
  const status = document.getElementById("status").value;
  const outcome = document.getElementById("outcome").value;
  const passes = (p) => p !== null && (outcome === "mixed" ? p > 0 && p < 1 : p === Number(outcome));
  return columns.task.map((_, task) => task).filter((task) =>
    (!status || columns.status[task] === status) &&
    (!outcome || passes(columns.pass_at_1[task])) &&
    (!wanted || columns.task[task].toLowerCase().includes(wanted) ||
      (several && data.sets[columns.set[task]].toLowerCase().includes(wanted))));
}

function tableRow(task) {
  const row = element("tr", task === table.open ? { class: "open" } : {});
  for (const [name, , kind] of HEADS) {
    const value = cellValue(name, task);
    const text = kind === "number" ? number(value) : value === null ? "–" : oneLine(String(value));
    const cell = element("td", kind === "text" ? { class: "text" } : {});
    if (name === "task") {
      cell.title = text;
      cell.append(hasDetails.has(task) ? element("a", { href: linkTo(task) }, text || "(no name)") : text);
    } else {
      cell.append(text);
    }
    row.append(cell);
  }
  return row;
}

function showTable() {
  table.order = sorted(matching());
  const shown = table.order.slice(0, table.rows);
  document.getElementById("rows").replaceChildren(...shown.map(tableRow));
  const all = counted(columns.task.length, "task");
  const found = table.order.length;
  document.getElementById("shown").textContent = found < columns.task.length ? `${found.toLocaleString("en")} of ${all}` : all;
  const more = document.getElementById("more");
  more.hidden = shown.length === found;
  more.textContent = `Show ${Math.min(MORE_ROWS, found - shown.length)} more of ${found.toLocaleString("en")} rows`;
  for (const head of document.getElementById("heads").children) {
    const here = head.dataset.name === table.by;
    head.setAttribute("aria-sort", here ? (table.descending ? "descending" : "ascending") : "none");
  }
}

function setUpTable() {
  for (const [name, title, kind] of HEADS) {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      // Numbers start with the largest, which for entropies are the least certain tasks.
      table.descending = table.by === name ? !table.descending : kind !== "text";
      table.by = name;
      showTable();
    });
    const head = element("th", { scope: "col", "data-name": name }, button);
    if (kind === "text") head.style.textAlign = "left";
    document.getElementById("heads").append(head);
  }
  for (const status of [...new Set(columns.status)].sort()) {
    document.getElementById("status").append(element("option", { value: status }, status));
  }
  document.getElementById("outcome-label").hidden = !data.labelled;
  document.getElementById("filters").addEventListener("input", showTable);
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("more").addEventListener("click", () => { table.rows += MORE_ROWS; showTable(); });
  showTable();
}
