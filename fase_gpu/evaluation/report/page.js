"use strict";
// What every part of the page uses. Texts of tasks reach the document as text nodes only.

const data = JSON.parse(document.getElementById("data").textContent);
const columns = data.columns;
const hasDetails = new Set(data.details);
const several = data.sets.length > 1;

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Control characters and those that turn the direction of writing are shown, not obeyed.
function visible(text) {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) =>
      "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function oneLine(text) {
  return visible(text).replace(/\n/g, "\\n").replace(/\t/g, "\\t");
}

function number(value, digits = 3) {
  if (value === null) return "–";
  return value !== 0 && Math.abs(value) < 10 ** -digits ? value.toExponential(1) : value.toFixed(digits);
}

function counted(count, one, many = one + "s") {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

function linkTo(task) {
  const place = { task: columns.task[task] };
  if (several) place.set = data.sets[columns.set[task]];
  return "#" + new URLSearchParams(place);
}

// The task that the address names, or -1.
function linkedTask() {
  const place = new URLSearchParams(location.hash.slice(1));
  return columns.task.findIndex((id, task) =>
    id === place.get("task") && (!place.has("set") || place.get("set") === data.sets[columns.set[task]]));
}
