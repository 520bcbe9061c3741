// Text with too little contrast, and controls without a label.
() => {
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const behind = (node) => { for (; node; node = node.parentElement) {
    const [r, g, b, a] = parse(getComputedStyle(node).backgroundColor); if (a === undefined || a > 0) return [r, g, b]; } return [255, 255, 255]; };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].filter((one) => one.nodeType === 3 && one.textContent.trim());
    if (!text.length || !node.offsetParent || node.closest(".settled")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
  }
  for (const node of document.querySelectorAll("input:not([type=hidden]), select, button"))
    if (node.offsetParent && !(node.labels?.length || node.ariaLabel || node.textContent.trim())) bad.push(`${node.outerHTML} has no label`);
  return bad;
}
