// One task, as the address names it.

function taskFacts(task) {
  const facts = HEADS.filter(([name]) => name !== "task").map(([name, title, kind]) => {
    const value = cellValue(name, task);
    return element("li", {}, element("span", {}, title), " ", kind === "number" ? number(value) : value === null ? "–" : oneLine(String(value)));
  });
  return element("ul", { class: "facts" }, ...facts);
}

function neighbour(task, step) {
  const order = table.order.filter((other) => hasDetails.has(other));
  return order[order.indexOf(task) + step];
}

function taskBar(task) {
  const bar = element("p", { class: "bar" });
  for (const [title, step] of [["← Previous", -1], ["Next →", 1]]) {
    const button = element("button", { type: "button" }, title);
    const other = neighbour(task, step);
    button.disabled = other === undefined;
    button.addEventListener("click", () => { location.hash = linkTo(other); });
    bar.append(button);
  }
  const close = element("button", { type: "button" }, "Close");
  close.addEventListener("click", () => { location.hash = "#tasks"; });
  bar.append(close, element("span", { class: "note" }, "in the order of the table; the address is a link to this task"));
  return bar;
}

function taskParts(task) {
  const parts = [taskBar(task), taskFacts(task)];
  if (!hasDetails.has(task)) {
    return [...parts, element("p", { class: "note" }, "The samples and drawings of this task were left out of this file (--details).")];
  }
  const detail = JSON.parse(document.getElementById(`detail-${task}`).textContent);
  if (detail.prompt) {
    parts.push(element("details", { open: "" }, element("summary", {}, "Prompt"), code(plain(detail.prompt), "Prompt"), ...cutNote(detail.prompt_cut)));
  }
  if (detail.order) {
    parts.push(element("div", { class: "drawings" }, heatmap(detail), spanningTree(detail), mergeTree(detail)));
  } else if (columns.status[task] === "OK") {
    parts.push(element("p", { class: "note" }, `Distances and trees are drawn for up to ${data.most_drawn} samples.`));
  } else {
    parts.push(element("p", { class: "note" }, `No score: ${columns.status[task]}.`));
  }
  return [...parts, samplesByClass(detail)];
}

function showTask() {
  const named = new URLSearchParams(location.hash.slice(1)).get("task");
  const section = document.getElementById("task");
  table.open = named === null ? -1 : linkedTask();
  section.hidden = named === null;
  showTable();
  if (named === null) { section.replaceChildren(); return; }
  const title = element("h2", { id: "task-title", tabindex: -1 }, oneLine(named) || "(no name)");
  const parts = table.open < 0 ? [element("p", { class: "note" }, "There is no such task in this report.")] : taskParts(table.open);
  section.replaceChildren(title, ...parts);
  section.scrollIntoView();
  title.focus({ preventScroll: true });
}

setUpTable();
window.addEventListener("hashchange", showTask);
showTask();
