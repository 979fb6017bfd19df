"use strict";
function copied(button, text) {
  function done() { button.textContent = "copied"; setTimeout(function () { button.textContent = "copy"; }, 1500); }
  function byHand() {
    var range = document.createRange();
    range.selectNodeContents(button.parentNode.querySelector("pre"));
    var chosen = window.getSelection();
    chosen.removeAllRanges();
    chosen.addRange(range);
    if (document.execCommand("copy")) { done(); }
  }
  if (navigator.clipboard && window.isSecureContext) {
    navigator.clipboard.writeText(text).then(done, byHand);
  } else {
    byHand();
  }
}
document.addEventListener("click", function (event) {
  var button = event.target.closest ? event.target.closest("button.copy") : null;
  if (button) { copied(button, button.parentNode.querySelector("pre").textContent); }
});
window.addEventListener("beforeprint", function () {
  document.querySelectorAll("details:not(.long):not([open])").forEach(function (one) {
    one.open = true;
    one.dataset.opened = "yes";
  });
});
window.addEventListener("afterprint", function () {
  document.querySelectorAll("details[data-opened]").forEach(function (one) {
    one.open = false;
    delete one.dataset.opened;
  });
});
