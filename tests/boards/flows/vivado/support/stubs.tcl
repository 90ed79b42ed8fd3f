# Stands in for Vivado: every command that Tcl does not have is written down with its arguments, one list per line, checked
# by vivado_rules.tcl, and answered as far as the scripts look at the answer. Arguments: file to write to, and the script.
#
# In the environment: STUB_SLACKS (WNS of each implemented run, the last one for all after it), STUB_VERSION, STUB_BOARD_PARTS, STUB_FAIL (a command at which it fails),
# STUB_STOP_AT (a number and a command: fails at that call of it), STUB_HWH (a hand-off file that
# the made-up build leaves), STUB_REPORTS (a folder with reports), STUB_HANG (a command at which it waits for ever).

lassign $argv stub_log stub_script
source [file join [file dirname [file normalize [info script]]] vivado_rules.tcl]

proc stub_env {name default} {
    if {[info exists ::env($name)]} {
        return $::env($name)
    }
    return $default
}

proc stub_write {path text} {
    file mkdir [file dirname $path]
    set file [open $path w]
    puts -nonewline $file $text
    close $file
}

proc unknown {name args} {
    set file [open $::stub_log a]
    puts $file [list $name {*}$args]
    close $file
    if {[string match stub* $name]} {
        error "the stubs have no $name"
    }
    stub_check $name $args
    if {$name eq [stub_env STUB_FAIL ""]} {
        error "ERROR: \[Stub 1-1\] $name failed"
    }
    if {[lindex [stub_env STUB_STOP_AT ""] 1] eq $name && [incr ::stub_calls] == [lindex [stub_env STUB_STOP_AT ""] 0]} {
        error "ERROR: \[Stub 1-2\] $name failed"
    }
    if {$name eq [stub_env STUB_HANG ""]} {
        puts "edgedec stub: waiting"
        flush stdout
        after 60000
    }
    set answer stub:[string map {:: .} $name]
    if {[llength [info procs $answer]]} {
        set answered [$answer {*}$args]
    } elseif {[string match get_* $name] || [string match ipx::get_* $name]} {
        set answered [lindex $args end]
    } else {
        set answered ""
    }
    stub_happened $name $args
    return $answered
}

proc stub:version {args} {return [stub_env STUB_VERSION 2022.1]}
proc stub:create_bd_cell {args} {return /[lindex $args end]}
proc stub:ipx.current_core {} {return core}
proc stub:ipx.get_memory_maps {args} {return ""}
proc stub:ipx.add_memory_map {name core} {return map:$name}
proc stub:ipx.get_address_blocks {args} {return ""}
proc stub:ipx.add_address_block {name map} {return block:$name}
proc stub:ipx.get_address_spaces {args} {return ""}
proc stub:ipx.add_address_space {name core} {return space:$name}
proc stub:ipx.get_bus_interfaces {name args} {return bus:$name}
proc stub:ipx.get_user_parameters {name args} {return parameter:$name}
proc stub:get_board_parts {args} {return [stub_env STUB_BOARD_PARTS ""]}
proc stub:get_bd_addr_segs {args} {return segment:[lindex $args end]}
proc stub:make_wrapper {args} {return wrapper.v}

# Several versions of everything, the newest one not the last by the alphabet.
proc stub:get_ipdefs {args} {
    regexp {xilinx.com:ip:([^:]*):} [lindex $args end] -> name
    return [list xilinx.com:ip:$name:9.2 xilinx.com:ip:$name:10.1 xilinx.com:ip:$name:2.0]
}

proc stub:create_project {args} {
    set at [expr {[lindex $args 0] eq "-force"}]
    set ::stub_project [lindex $args $at]
    set ::stub_folder [lindex $args [expr {$at + 1}]]
    stub_write [file join $::stub_folder $::stub_project.xpr] ""
}

proc stub:open_project {path} {
    set ::stub_folder [file dirname $path]
    set ::stub_project [file rootname [file tail $path]]
}

# The paths of an opened run: one that is too slow where the slack is negative.
proc stub:get_timing_paths {args} {
    return [expr {[lsearch $args max] >= 0 ? "slowest" : "fastest"}]
}

proc stub:get_property {name object} {
    if {$object eq "fastest"} {
        return 0.02
    }
    switch -glob $name {
        SLACK {return $::stub_slack}
        LOGIC_LEVELS {return 12}
        DATAPATH_DELAY {return 4.25}
        STARTPOINT_PIN {return {accelerator_0/inst/core/here_reg[3]/C}}
        ENDPOINT_PIN {return accelerator_0/inst/core/there_reg/D}
        PROGRESS {return "100%"}
        DIRECTORY {return [file join $::stub_folder runs $object]}
        board_part {return ""}
        CONFIG.*_ACT_* - CONFIG.PCW_ACT_* {return 99.999}
        default {error "no property $name"}
    }
}

# The table of a real summary as far as the scripts read it, with the slack of this run.
proc stub:report_timing_summary {args} {
    set slacks [stub_env STUB_SLACKS 0.123]
    set ::stub_slack [lindex $slacks [expr {min($::stub_opened, [llength $slacks]) - 1}]]
    set path [lindex $args end]
    if {[stub_env STUB_REPORTS ""] ne ""} {
        stub_report {*}$args
        set file [open $path r]
        regexp -line {^    *(-?[0-9.]+) } [read $file] -> ::stub_slack
        close $file
    } else {
        stub_write $path "| Design Timing Summary\n\n    WNS(ns)      TNS(ns)  TNS Failing Endpoints      WHS(ns)     WPWS(ns)\
            \n    -------      -------  ---------------------      -------     --------\
            \n      $::stub_slack        0.000                      0        0.011        1.427\n"
    }
}

proc stub:generate_target {what file} {
    set design [file rootname $file]
    set text "<EDKSYSTEM/>"
    if {[stub_env STUB_HWH ""] ne ""} {
        set source [open [stub_env STUB_HWH ""] r]
        set text [read $source]
        close $source
    }
    stub_write [file join $::stub_folder $::stub_project.gen sources_1 bd $design hw_handoff $design.hwh] $text
}

proc stub:launch_runs {run args} {
    if {$run eq "impl_1"} {
        stub_write [file join $::stub_folder runs impl_1 accelerator_system_wrapper.bit] "no bitstream at all"
    }
}

proc stub_report {args} {
    set path [lindex $args end]
    set folder [stub_env STUB_REPORTS ""]
    if {$folder ne "" && [file exists [file join $folder [file tail $path]]]} {
        file copy -force -- [file join $folder [file tail $path]] $path
    } else {
        stub_write $path "no report"
    }
}

foreach stub_name {report_utilization report_power write_hw_platform} {
    proc stub:$stub_name {args} {stub_report {*}$args}
}

set argv {}
set stub_opened 0
set stub_slack 0
if {[catch {source $stub_script} stub_message]} {
    puts "ERROR: $stub_message"
    exit 1
}
exit 0
