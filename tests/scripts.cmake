# The project's own scripts as tests, label `script`.

function(moxie_script_test name)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS script SKIP_RETURN_CODE 77 TIMEOUT 300)
endfunction()

moxie_script_test(script.check_layers tools/check_layers.py)
moxie_script_test(script.check_layers_self_test tools/check_layers.py --self-test)
moxie_script_test(script.check_spills_self_test tools/check_spills.py --self-test)
moxie_script_test(script.check_findings tools/check_findings.py)
moxie_script_test(script.check_ids tools/check_ids.py --require)
# The golden vectors are those that the other implementation gives today. It lives in build/venv, which `make test` fills.
moxie_script_test(script.regen_golden tools/in_venv.sh tools/regen_golden.py --check)
if(TARGET moxie_cli)
  moxie_script_test(script.independent_check tests/cli/independent_check.sh $<TARGET_FILE:moxie_cli>)
  moxie_script_test(script.quantized_check tools/in_venv.sh tests/cli/quantized_check.py $<TARGET_FILE:moxie_cli>)
  moxie_script_test(script.gguf_check tools/in_venv.sh tests/cli/gguf_check.py $<TARGET_FILE:moxie_cli>)
  set_tests_properties(script.gguf_check PROPERTIES LABELS "script;slow")
  moxie_script_test(script.readme tools/check_readme.py --moxie $<TARGET_FILE:moxie_cli>)
endif()
moxie_script_test(script.quantiser_quality tests/quantize/quality.sh $<TARGET_FILE:moxie_quantise_raw>)
set_tests_properties(script.quantiser_quality PROPERTIES LABELS slow)
